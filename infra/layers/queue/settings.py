"""Settings of the queue layer."""

from dataclasses import dataclass

from infra.layers.queue.kueue import STRATEGIES
from infra.layers.queue.versions import IMAGES
from infra.settings import rules
from infra.settings.schema import setting

NAMESPACE = rules.pattern(
    "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
    "a Kubernetes namespace: 1 to 63 lowercase letters, digits and hyphens, first and last no hyphen",
    "rename it",
)


@dataclass(frozen=True, kw_only=True)
class TeamSettings:
    """An item of `queue:teams`."""

    name: str = setting("name of the team", rule=NAMESPACE, example="vision")
    namespace: str | None = setting(
        "Kubernetes namespace of its jobs; the team's name, unless given", default=None, rule=NAMESPACE
    )
    members: tuple[str, ...] = setting("who may submit and cancel its jobs", default=(), rule=rules.MEMBER)


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """JobSet and Kueue on the cluster, and the teams that submit jobs."""

    teams: tuple[TeamSettings, ...] = setting(
        "the teams: a namespace and a queue each",
        example="[{name: vision}]",
        not_empty="jobs are submitted by teams",
    )
    kueue_image: str = setting(
        "image of Kueue's controller; one of registry.k8s.io is pulled by a remote repository of ours",
        default=IMAGES["kueue"],
        rule=rules.DIGEST,
    )
    jobset_image: str = setting(
        "image of JobSet's controller; likewise", default=IMAGES["jobset"], rule=rules.DIGEST
    )
    image: str | None = setting(
        "image that jobs run in; without it `tpu job submit` needs --image", default=None, rule=rules.DIGEST
    )
    install: str = setting(
        "what pods run: `bundle`, that of tpu:bundle, which they install as hosts do, on an image with bash "
        "and curl; or `image`, what the image itself has",
        default="bundle",
        rule=rules.one_of("bundle", "image"),
    )
    queueing_strategy: str = setting(
        "BestEffortFIFO: a job that doesn't fit lets smaller ones and those for other pools pass; "
        "StrictFIFO: none passes it, so chips may stand idle, and the order is strict",
        default=STRATEGIES[0],
        rule=rules.one_of(*STRATEGIES),
    )
    chips: int | None = setting(
        "chips of all node pools, which the queue's quota is derived from; only checked",
        default=None,
        rule=rules.between(0, 1_000_000),
    )
    restarts: int = setting(
        "how often a job is restarted after a failure that isn't its own; maintenance and preemption are not "
        "counted",
        default=4,
        rule=rules.between(0, 100),
    )
