"""Messages of Kueue and JobSet about a job, in the words of those who submit it.

As Kueue's scheduler and JobSet write them (pkg/scheduler, pkg/constants); other messages stay as they are.
"""

from __future__ import annotations

import re

from infra.layers.queue.kueue import CPU_FLAVOR, TPU

_BEGIN = re.compile(r"couldn't assign flavors( to pod set \S+)?: ")
_PREEMPTS = re.compile(r"\. Pending the preemption of (\d+) workload\(s\)")
_BUSY = re.compile(rf"insufficient unused quota for {re.escape(TPU)} in flavor (\S+), (\d+) more needed")
_TOO_LARGE = re.compile(
    rf"insufficient quota for {re.escape(TPU)} in flavor (?!{CPU_FLAVOR},)(\S+), previously considered .*?"
    r"current podset request \((\d+)\) > maximum capacity \((\d+)\)"
)
_NOT_WHOLE = re.compile(r'topology "[^"]+" (doesn\'t allow to fit|allows to fit only)')
# That CPU nodes have no chips is nothing that holds a job.
_OF_CPU = re.compile(f'Flavor "{CPU_FLAVOR}" does not support TopologyAwareScheduling, ')


def queued(message: str) -> str:
    """Return what a job waits for; empty: unknown."""
    text = _OF_CPU.sub("", _BEGIN.sub("", message))
    if busy := _BUSY.findall(text):
        held = " or ".join(f"{_chips(int(chips), 'more ')} of {flavor}" for flavor, chips in busy)
        reason = f"waits for {held}"
    elif _NOT_WHOLE.search(text):
        reason = "waits for a whole slice"
    elif too_large := _TOO_LARGE.findall(text):
        most = " or ".join(dict.fromkeys(f"{most} of {flavor}" for flavor, _, most in too_large))
        reason = f"can't start: it needs {_chips(int(too_large[0][1]))}, and its queue has {most}"
    else:
        return text
    return f"{reason}; another job makes room for it" if _PREEMPTS.search(text) else reason


def by_program(message: str) -> bool:
    """Return whether a job failed by a worker's exit status, not by lost workers."""
    return "FailJobSet" in message


def failed(message: str) -> str:
    """Return why a job failed; empty: unknown."""
    if by_program(message):
        return "its program ended with an error"
    if "reaching max number of restarts" in message:
        return "it lost workers more often than queue:restarts allows"
    return message


def _chips(number: int, more: str = "") -> str:
    return f"{number} {more}chip{'' if number == 1 else 's'}"
