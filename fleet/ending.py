"""End of ad hoc fleets: what proves that a program has ended, and the deletion of fleets that have."""

import logging
from collections.abc import Collection, Mapping, Sequence

from fleet.adhoc import ID, PHASE, SINCE, STOP_WHEN_DONE, WHY, Phase
from fleet.controller import Controller
from fleet.environment import Environment
from fleet.errors import FleetError
from fleet.model import GOING, TAKEN_AWAY, Claim, Condition, Decision, ObservedNode, View, WorkerStatus
from fleet.observation import Observation
from fleet.removal import delete_nodes, of_fleet
from fleet.show import unanswered
from fleet.store import LeaseHeldError
from fleet.zones import unproven
from infra.google.client import RequestError

_SET_S = 2.0  # by which a clock is set while a job runs; to start another takes longer
_DELETION_S = 60.0  # that a monitor waits for one: others may need it meanwhile


def over(decisions: Collection[Decision], since_s: float = 0.0) -> Mapping[Claim, Collection[Decision]]:
    """Return the nodes whose statuses say that a program has ended, by claim; empty if it goes on.

    It has ended once it is done on every node, or failed permanently on one, by statuses of starts after
    `since_s`: see `start_s`.
    """
    fresh = [item for item in decisions if not (item.status and _earlier(item.status, since_s))]
    failed = [
        decision
        for decision in fresh
        if decision.condition is Condition.FAILED and decision.status and decision.status.final
    ]
    if failed:
        return {Claim.FINAL: failed}
    done = bool(fresh) and all(decision.condition is Condition.DONE for decision in fresh)
    return {Claim.DONE: fresh} if done and len(fresh) == len(decisions) else {}


def start_s(status: WorkerStatus) -> float:
    """Return when the last of a job's workers began, by its host's clock; where unknown, the status' time.

    A report of an earlier program may be newer than the command that replaces it: a host's service repeats
    it once when it starts again, as it does after an installation.
    """
    return status.last_began_s or status.at_s


def _earlier(status: WorkerStatus, since_s: float) -> bool:
    """Return True if a worker began at `since_s` or before."""
    return status.began_s <= since_s + _SET_S if status.began_s else status.at_s <= since_s


def disputed(fleet: Environment, claims: Mapping[Claim, Collection[Decision]], now_s: float) -> str:
    """Return why the end of a program isn't believed; empty if it is proven.

    Any host can write the statuses that `over` goes by. The cloud proves them: by a node that it has taken
    away, or by guest attributes, which only the node's own machines can write.
    """
    problems = []
    for claim, decisions in claims.items():
        for decision in decisions:
            try:
                why = _disputed(fleet, decision, claim, now_s)
            except RequestError as error:
                why = str(error).partition("\n")[0]
            if not why and claim is Claim.FINAL:
                return ""  # one is enough
            if why:
                claimed = f"{decision.node}: {claim}, by its heartbeat alone"
                problems.append(f"{claimed}, which isn't believed: {why}")
    return "; ".join(problems)


def _disputed(fleet: Environment, decision: Decision, claim: Claim, now_s: float) -> str:
    observed = fleet.google.node(decision.zone, decision.node)
    if observed is None or observed.state in GOING | TAKEN_AWAY:
        return ""
    timeout_s = fleet.limits.heartbeat_timeout_s
    return unproven(fleet.google, observed, decision.instance, claim, now_s, timeout_s)


def take_down_ended(
    fleet: Environment, controller: Controller, observation: Observation, longest_s: float = _DELETION_S
) -> None:
    """Delete ad hoc fleets whose deletion has begun, or whose program has ended if they stop when done.

    A node that appears after its record has ended, as of a request that was under way, is deleted, too. A
    deletion that isn't over after `longest_s` is continued at a later look.

    Raises:
        LeaseHeldError: another controller has taken the lease.
    """
    if unanswered(observation):
        return  # an unseen node would be left behind, and billed
    if not controller.leads:
        return
    if late := _late(fleet, observation):
        names = ", ".join(observed.name for observed in late)
        report = f"{names}: deleted (its fleet has ended)"
        _delete(fleet, controller, observation.view, (), late, {}, report, longest_s)
    fleet.saved.prune()
    for name, item in fleet.adhoc.items():
        decisions = [decision for decision in observation.decisions if decision.member.slice == name]
        if len(decisions) != item.get("count"):
            continue  # a monitor of a part
        why: str
        if item[PHASE] is Phase.ENDING:
            why = item.get(WHY) or "its deletion had begun"
        elif name in observation.unwanted:
            continue  # the record has changed since it was read
        elif item.get(STOP_WHEN_DONE) and (claims := over(decisions, float(item.get(SINCE) or 0.0))):
            if problem := disputed(fleet, claims, observation.view.at_s):
                controller.note(f"{name}: not deleted: {problem}", logging.WARNING)
                continue
            failed = [decision.why for decision in claims.get(Claim.FINAL, ())]
            why = f"{Condition.FAILED}: {failed[0]}" if failed else Condition.DONE
        else:
            continue
        keys = {decision.member.key for decision in decisions}
        nodes = of_fleet(observation, name)
        report = f"{name}: deleted ({why})"
        _delete(fleet, controller, observation.view, keys, nodes, {name: why}, report, longest_s)


def _late(fleet: Environment, observation: Observation) -> list[ObservedNode]:
    """Return the nodes of records that have ended, also where another fleet has the name by now."""
    present = {
        name: item[ID]
        for name, item in fleet.adhoc.items()
        if ID in item and name not in observation.unwanted
    }
    result = []
    for observed in (*observation.orphans, *(node for _, node in observation.nodes)):
        record = observed.labels.get("record")
        earlier = present.get(observed.labels.get("fleet", ""), record) != record
        if record and (earlier or record in fleet.saved.ended):
            result.append(observed)
    return result


def _delete(
    fleet: Environment, controller: Controller, view: View, keys: Collection[str],
    nodes: Sequence[ObservedNode], ends: Mapping[str, str], report: str, longest_s: float,
) -> None:  # fmt: skip
    """Delete nodes; a failure is reported, and the next look shows what is left."""
    controller.note(report)
    try:
        delete_nodes(fleet, controller, view, keys, nodes, controller.note, ends, longest_s)
    except LeaseHeldError:
        raise
    except FleetError as error:
        controller.note(str(error), logging.WARNING)
