"""Decide on each member, from an observation and the stored state, without I/O.

A replacement needs an explicit report that the node is of no use, by Google or by its workers, and a complete
list of its zone. A zone that didn't answer, an unknown state, silence that others share: all of these are
unknown, and an unknown member is left alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fleet.controller_state import Attempt, ControllerState, Refusal
from fleet.model import (
    GOING,
    HEARTBEAT_S,
    ON_THE_WAY,
    TAKEN_AWAY,
    Action,
    Cause,
    Claim,
    Condition,
    Decision,
    ObservedNode,
    Owner,
    View,
    WorkerStatus,
    ZoneView,
    changeover,
)  # fmt: skip
from infra.google.failures import Kind
from infra.slices.names import command_id
from infra.slices.nodes import Node

RERUN_FAILED = "rerun-failed"
LIST_LAG_S = 120.0  # a list may be this old; a request about one node never is


@dataclass(frozen=True)
class Limits:
    """Limits of recoveries.

    Attributes:
        preemptions_a_day: recoveries from preemptions, of all members together; None: any number.
        failures_a_day: recoveries from failures, of one member.
        heartbeat_timeout_s: silence of workers that had reported, while others report, that counts as a
            failure; silence of the bucket after which a preempted member with a command is recreated.
        churn_s: a member that was lost this soon after it came back, twice in a row, is held for an hour,
            unless a user requests it.
    """

    preemptions_a_day: int | None = None
    failures_a_day: int = 3
    heartbeat_timeout_s: float = 1800.0
    churn_s: float = 600.0


def decide(
    members: Sequence[Node],
    view: View,
    state: ControllerState,
    limits: Limits,
    owner: Owner,
) -> list[Decision]:
    """Return one decision per member, in the members' order.

    Args:
        members: in their present or intended zones (fleet/members.py).
        view: the observation.
        state: earlier attempts and refusals.
        limits: of preemptions and failures per day.
        owner: identifies this stack's nodes.
    """
    reporting, now_s = _reporting(view), view.cloud_s
    result = []
    for member in members:
        if unknown := _unanswered(member, view, state):
            result.append(_of(member, Action.WAIT, Condition.UNKNOWN, unknown))
            continue
        observed = view.node(member.name, member.zone)
        back = None if state.open(member.key) else state.last_back(member.key)
        if back and _stale(observed, back, view.at_s):
            why = f"back for {view.at_s - back.back_s:.0f} s; Google's list isn't yet of now"
            result.append(_of(member, Action.WAIT, Condition.STARTING, why))
            continue
        if foreign := _foreign(member, observed, owner):
            result.append(_of(member, Action.HOLD, Condition.UNKNOWN, foreign))
            continue
        command = command_id(member.run or "")
        status = view.status(observed, command) if observed else None
        desired = _desired(member, observed, status, reporting, now_s, limits)
        desired = replace(desired, status=status, instance=observed.instance if observed else "")
        if observed and observed.zone not in (member.home, *member.others, *member.spread):
            desired = replace(
                desired, why="; ".join(filter(None, [desired.why, _left_behind(member, owner)]))
            )
        if desired.action is Action.CREATE and (recovery_cause := state.recovery_cause(member.key)):
            desired = replace(desired, condition=Condition.RECOVERING, cause=recovery_cause)
        elif desired.action is Action.CREATE:
            last = view.reported(member.name, command)
            desired = _absent(
                desired, last, deleted=member.member is None and member.name in (owner.held or ())
            )
        if member.member is None and owner.held is None and desired.action in (Action.CREATE, Action.REPLACE):
            why = f"{desired.why}; managed by Pulumi, which is unavailable here\n    fix: tpu recover"
            desired = replace(desired, action=Action.HOLD, why=why)
        result.append(_allowed(desired, member, view, state, limits))
    return _within_budget(result, state, limits, view.at_s)


def _unanswered(member: Node, view: View, state: ControllerState) -> str:
    """Return why it is unknown whether a member exists; empty: it is known.

    A member that no list shows, and that wasn't deleted just now, may live in any of its fleet's zones, and
    in the zone of its last creation.
    """
    back = state.last_back(member.key)
    known = view.node(member.name, member.zone) or state.open(member.key)
    requested = [member.zone] if known else [*member.places, *member.spread, *([back.zone] if back else [])]
    for name in dict.fromkeys(requested):
        zone = view.zones.get(name)
        if zone is None or zone.nodes is None:
            kind = f" ({zone.failure.kind})" if zone and zone.failure else ""
            return f"{name} didn't answer{kind}"
    return ""


def _foreign(member: Node, observed: ObservedNode | None, owner: Owner) -> str:
    """Return why an existing node isn't this stack's, with the fix; empty if it is, or none exists."""
    if observed is None or observed.state in GOING or owner.has(member, observed):
        return ""
    if member.member is None:
        settle = f"tpu infra settle {owner.labels.get('environment')} tpu"
        fix = f"if an update of yours was killed: {settle}; else rename the slice, or pulumi import"
        return f"a node of this name is there, and your stack doesn't hold it\n    fix: {fix}"
    labels = owner.labels_of(member)
    if labels.items() <= observed.labels.items():
        known = owner.recorded[member.key].instance if member.key in owner.recorded else ""
        other = f"a node of this name is there with the id {observed.instance}"
        fix = f"delete it manually, or end the fleet: tpu fleet delete {owner.labels.get('environment')}"
        why = f"{other}, which somebody else made: the record has {known or 'none'}"
        return f"{why}\n    fix: {fix} --slice {member.slice}, which leaves it alone"
    stack = observed.labels.get("stack")
    if owner.labels.items() <= observed.labels.items() and stack != owner.stack:
        take = "no other controller keeps it: tpu fleet take-over"
        if member.key in owner.recorded:
            take = f"it is yours, give it the label stack={owner.stack}"
        return (
            f"it is of another stack, {stack or 'without an id'}\n    fix: if {take}; else rename the fleet"
        )
    given = ",".join(f"{key}={value}" for key, value in labels.items())
    fix = f"if it is yours, give it the labels {given}; else delete it manually, or rename the fleet"
    return f"a node of this name is there without our labels\n    fix: {fix}"


def _left_behind(member: Node, owner: Owner) -> str:
    fix = f"tpu fleet delete {owner.labels.get('environment')} --slice {member.slice}"
    why = f"{member.zone} is no longer a zone of its fleet: it stays there until it is lost"
    return f"{why}\n    fix: {fix} --zones {member.zone}, or nothing"


def _desired(
    member: Node,
    observed: ObservedNode | None,
    status: WorkerStatus | None,
    reporting: frozenset[str],
    now_s: float,
    limits: Limits,
) -> Decision:
    """Return the action for a member, regardless of budgets and pauses."""
    if observed is None:
        return _of(member, Action.CREATE, Condition.ABSENT, "there is no such node", Cause.NEW)
    if observed.state in TAKEN_AWAY:
        # What an ad hoc fleet did before another program took it over is done, and not this program's work.
        earlier = "record" in observed.labels and observed.labels.get("bundle") != member.bundle_label
        if status and status.work == "done" and not earlier:
            why = f"its work is done; Google says {observed.state}, and it isn't recreated"
            return _of(member, Action.LEAVE, Condition.DONE, why)
        why = f"Google says {observed.state}"
        return _of(member, Action.REPLACE, Condition.RECOVERING, why, Cause.PREEMPTION)
    if observed.state in ON_THE_WAY:
        return _of(member, Action.WAIT, Condition.STARTING, f"Google says {observed.state}")
    if observed.state in GOING:
        return _of(member, Action.WAIT, Condition.RECOVERING, f"Google says {observed.state}")
    if observed.state != "READY":
        return _of(member, Action.LEAVE, Condition.UNKNOWN, f"Google says {observed.state or 'nothing'}")
    if status is None:
        since_min = (now_s - observed.created_s) / 60
        if 0 < observed.created_s < now_s - limits.heartbeat_timeout_s:
            why = f"READY for {since_min:.0f} min, but no heartbeat: see its boot log"
            return _of(member, Action.LEAVE, Condition.UNKNOWN, why)
        return _of(member, Action.LEAVE, Condition.STARTING, "no heartbeat yet")
    return _of_status(member, observed, status, reporting, now_s, limits)


def _absent(desired: Decision, last: WorkerStatus | None, *, deleted: bool) -> Decision:
    """Return the decision on a member without a node; `deleted`: somebody deleted it past Pulumi."""
    # A boot under way, or a failed one, is of a later life than the work.
    done = last is not None and last.work == "done" and last.boot not in ("booting", "failed")
    if deleted and done:
        again = "to run it again, delete its entry in the settings, tpu up, and enter it again"
        why = f"its work is done; it was deleted, and isn't recreated\n    fix: {again}"
        return replace(desired, action=Action.LEAVE, condition=Condition.DONE, why=why, cause=None)
    if deleted:
        return replace(desired, condition=Condition.RECOVERING)
    return replace(desired, why=f"{desired.why}; its work was reported done") if done else desired


def _older(member: Node, observed: ObservedNode) -> str:
    """Return the reason for hosts with another command than the member's, and how they get it."""
    fix = changeover(observed.labels.get("environment", "ENV"), [member.slice])
    return f"its hosts run an older command until they boot again\n    fix: {fix}"


def _of_status(
    member: Node,
    observed: ObservedNode,
    status: WorkerStatus,
    reporting: frozenset[str],
    now_s: float,
    limits: Limits,
) -> Decision:
    """Return the action for a READY node, by its workers' statuses."""
    full = "its boot disk is full" if status.disk_full else ""
    rerun = (
        f"its startup script was run again and failed at {status.stage}"
        if status.boot == RERUN_FAILED
        else ""
    )
    working = "; ".join(filter(None, [full, rerun or status.why]))
    reports = status.worked_s > now_s - 2 * HEARTBEAT_S  # a slice whose job reports is never replaced
    if reports and status.work in ("running", "older"):
        if status.work == "older":
            return _of(member, Action.LEAVE, Condition.STARTING, rerun or _older(member, observed))
        return _of(member, Action.LEAVE, Condition.WORKING, working)
    if status.work == "done":
        return _of(member, Action.LEAVE, Condition.DONE, "its work is done")
    if status.work == "failed":
        why = f"its work failed: {status.why or 'see its log'}"
        if full:  # the host's fault, as far as anybody can tell; another's disk has room
            why = f"{full}, and {why}"
        if full and not reports:
            return _claimed(member, Claim.WORK_FAILED, why)
        return _of(member, Action.LEAVE, Condition.FAILED, why)
    if status.boot == "failed":
        why = f"its boot failed at {status.stage}{f': {status.why}' if status.why else ''}"
        return _claimed(member, Claim.BOOT_FAILED, why)
    if now_s - status.at_s > limits.heartbeat_timeout_s and (status.worked_s or status.boot == "booting"):
        why = f"READY, but no heartbeat for {(now_s - status.at_s) / 60:.0f} min{f'; {full}' if full else ''}"
        if not reporting - {member.name}:
            return _of(member, Action.LEAVE, Condition.UNKNOWN, f"{why}; no other slice reports either")
        return _claimed(member, Claim.SILENT, f"{why} while others report")
    if status.work == "older":
        return _of(member, Action.LEAVE, Condition.STARTING, _older(member, observed))
    if status.work == "running":
        return _of(member, Action.LEAVE, Condition.WORKING, working)
    if rerun:
        return _of(member, Action.LEAVE, Condition.FAILED, rerun)
    why = f"at {status.stage}{f': {status.why}' if status.why else ''}"
    return _of(member, Action.LEAVE, Condition.STARTING, why)


def _claimed(member: Node, claim: Claim, why: str) -> Decision:
    result = _of(member, Action.REPLACE, Condition.FAILED, why, Cause.FAILURE)
    return replace(result, claim=claim)


def _stale(observed: ObservedNode | None, back: Attempt, now_s: float) -> bool:
    """Return whether a list predates the last creation: it shows the node of then, or none."""
    if now_s - back.back_s > LIST_LAG_S:
        return False
    return observed is None or (bool(back.instance) and observed.instance == back.instance)


def _allowed(desired: Decision, member: Node, view: View, state: ControllerState, limits: Limits) -> Decision:
    """Return the desired action, or why it waits: a bundle, a zone, a limit, or frequent losses."""
    if desired.action not in (Action.CREATE, Action.REPLACE):
        return desired
    now_s = view.at_s
    bundle = member.bundle_label
    if member.member is not None and state.bundles.get(bundle):
        why = f"{desired.why}; no node has booted with the bundle {bundle}: {state.bundles[bundle]}"
        return replace(desired, action=Action.HOLD, why=f"{why}\n    fix: tpu publish a corrected one")
    # What Google took away is deleted at once: its name and its quota are of use to the next.
    gone = desired.action is Action.REPLACE and desired.claim is Claim.NONE
    deleted = desired.action is Action.CREATE and desired.condition is Condition.RECOVERING
    silent_s = view.at_s - state.listed_s
    unlisted = view.statuses is None and silent_s < limits.heartbeat_timeout_s
    if (gone or deleted) and unlisted and member.run and not state.open(member.key):
        why = f"{desired.why}; whether its work is done isn't known: the bucket didn't answer for"
        why = f"{why} {silent_s / 60:.0f} min, recreated after {limits.heartbeat_timeout_s / 60:.0f}"
        return replace(desired, action=Action.HOLD, condition=Condition.UNKNOWN, why=why)
    refusal = Refusal() if gone else state.refusal(member.key, desired.zone)
    if refusal.holds(now_s):
        # What was asked for, and not refused, may have been made though the answer was lost.
        requested = state.open(member.key)
        movable = refusal.kind is Kind.STOCK_OUT and not (requested and requested.name)
        zone = _other_zone(member, view, state) if movable else None
        if zone is None and refusal.stopped:
            return replace(desired, action=Action.HOLD, why=f"{desired.why}; refused: {refusal.stopped}")
        if zone is None:
            why = f"{desired.why}; {refusal.why}; retry in {refusal.not_before_s - now_s:.0f} s"
            return replace(desired, action=Action.HOLD, why=why)
        why = f"{desired.why}; no chips in {desired.zone}, made in {zone}"
        desired = replace(desired, member=replace(member, zone=zone), why=why)
    if state.continues(member.key, desired.instance):
        return desired
    if (
        desired.cause is Cause.FAILURE
        and state.spent(Cause.FAILURE, now_s, member.key) >= limits.failures_a_day
    ):
        why = f"{desired.why}; it failed {limits.failures_a_day} times in a day: look at its log"
        return replace(desired, action=Action.HOLD, why=why)
    if not state.manual and _churns_until(member.key, state, limits, now_s) > now_s:
        soon = f"within {limits.churn_s / 60:.0f} min of coming back"
        why = f"{desired.why}; it was lost twice {soon}: backing off for an hour, or until recovered manually"
        return replace(desired, action=Action.HOLD, why=why)
    return desired


def _other_zone(member: Node, view: View, state: ControllerState) -> str | None:
    """Return the fallback zone that answered and refused least often, and not now; None: there is none."""
    free = []
    for zone in member.places[1:]:
        observed, refusal = view.zones.get(zone, ZoneView(None)).nodes, state.refusal("", zone)
        if observed is not None and not refusal.holds(view.at_s):
            free.append((refusal.count, zone))
    return min(free, key=lambda item: item[0], default=(0, None))[1]


def _churns_until(node: str, state: ControllerState, limits: Limits, now_s: float) -> float:
    """Return the time until which a member is held that was lost soon after it came back, twice in a row."""
    last = [item for item in state.attempts.get(node, ()) if item.back_s and item.name][-3:]
    if len(last) < 3:
        return 0.0
    lived_s = (after.at_s - before.back_s for before, after in pairwise(last))
    return last[-1].back_s + 3600.0 if all(item < limits.churn_s for item in lived_s) else 0.0


def _within_budget(
    decisions: list[Decision], state: ControllerState, limits: Limits, now_s: float
) -> list[Decision]:
    """Hold the replacements after preemptions that exceed the day's limit."""
    if limits.preemptions_a_day is None:
        return decisions
    left, result = limits.preemptions_a_day - state.spent(Cause.PREEMPTION, now_s), []
    for desired in decisions:
        begins = desired.action is Action.REPLACE and desired.cause is Cause.PREEMPTION
        if begins and not state.continues(desired.member.key, desired.instance):
            left -= 1
            if left < 0:
                why = f"{desired.why}; {limits.preemptions_a_day} preemptions a day are allowed"
                desired = replace(desired, action=Action.HOLD, why=why)
        result.append(desired)
    return result


def _reporting(view: View) -> frozenset[str]:
    """Return the nodes whose workers reported lately, which shows that the bucket and this clock work."""
    statuses = view.statuses or {}
    return frozenset(
        node
        for node, reports in statuses.items()
        if any(abs(view.at_s - report.at_s) < 600 for report in reports)
    )


def _of(member: Node, action: Action, condition: Condition, why: str, cause: Cause | None = None) -> Decision:
    return Decision(member, action, condition, why, cause)


def held(decision: Decision, unwanted: Mapping[str, str]) -> Decision:
    """Return the decision, or that nothing is done for a member whose slice isn't wanted."""
    if not (reason := unwanted.get(decision.member.slice)):
        return decision
    return replace(decision, action=Action.HOLD, why="; ".join(filter(None, [decision.why, reason])))
