"""All steps. Scenarios name them by this module: `from rehearsal.scenario import steps as step`."""

from rehearsal.scenario.alerting import fired, quiet
from rehearsal.scenario.building import (
    clock,
    command,
    destroy,
    fault,
    fleet,
    preview,
    publish,
    quota,
    recover,
    settings,
    ssh,
    unchanged,
    up,
)
from rehearsal.scenario.disturbing import fill, lose, pull, reboot, stall, wake
from rehearsal.scenario.extracting import alike, extracted, preempt, shards
from rehearsal.scenario.guides import guide
from rehearsal.scenario.imaging import image
from rehearsal.scenario.jobs import heartbeat, logged, page, start, stop
from rehearsal.scenario.killing import kill, kills
from rehearsal.scenario.owner import request
from rehearsal.scenario.pipelines import continued, ends, made, preempted, retry, shard, submit, taken
from rehearsal.scenario.watching import done, reach, ready, remember, resumed, same, survived

__all__ = ["fired", "quiet"]
__all__ += ["clock", "command", "destroy", "fault", "fleet", "preview", "publish", "quota", "recover"]
__all__ += ["settings", "ssh", "unchanged", "up"]
__all__ += ["fill", "lose", "pull", "reboot", "stall", "wake"]
__all__ += ["alike", "extracted", "preempt", "shards"]
__all__ += ["guide"]
__all__ += ["image"]
__all__ += ["heartbeat", "logged", "page", "start", "stop"]
__all__ += ["kill", "kills"]
__all__ += ["request"]
__all__ += ["continued", "ends", "made", "preempted", "retry", "shard", "submit", "taken"]
__all__ += ["done", "reach", "ready", "remember", "resumed", "same", "survived"]
