"""Records of a controller's ad hoc fleets: read at each look, and written before each request."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from fleet.adhoc import ID, PHASE, AdHoc, Item, Phase, same_request
from fleet.errors import FleetError
from fleet.ids import NODES, RecordedNode, recorded
from fleet.model import GOING, ObservedNode, Owner, View
from infra.slices.nodes import Node

Entries = Mapping[str, RecordedNode]
"""By a member's key."""


class FleetRecords:
    """Records of some fleets.

    Attributes:
        nodes: of the members whose record has ids, by the last `read` and what was seen since.
        unwanted: by the last `read`, fleets that aren't to be created, with the reason.
    """

    def __init__(
        self, saved: AdHoc, fleets: Mapping[str, Item], members: Sequence[Node], others: Collection[str]
    ):
        """Create a reader and writer.

        Args:
            saved: of this object alone.
            fleets: as a command read them; one that it has yet to add has no phase.
            members: of these and of other fleets.
            others: ids of nodes that somebody else made.
        """
        self._saved, self._fleets, self._others = saved, fleets, frozenset(others)
        self._members: dict[str, list[Node]] = {}
        for member in members:
            if member.slice in fleets and member.member is not None:
                self._members.setdefault(member.slice, []).append(member)
        self._open = set[str]()  # those that can be written
        self.nodes: dict[str, RecordedNode] = {}
        self._stored: dict[str, RecordedNode] = {}
        self.unwanted: dict[str, str] = {}

    def read(self) -> None:
        """Read the records as they are now."""
        self.nodes, self._stored, self.unwanted, self._open = {}, {}, {}, set()
        records, unknown = self._saved.now(sorted(self._members))
        for name in sorted(self._members):
            item = self._fleets[name]
            if name in unknown:
                self.unwanted[name] = f"whether it is wanted isn't known: {unknown[name]}"
                self._know(name, item)
                continue
            record = records.get(name)
            living = record is not None and record[PHASE] is not Phase.ENDED
            if PHASE not in item:  # a command has yet to add it, or to take an earlier one over
                self._know(name, record if record and living else {**item, NODES: {}})
                continue
            if record is None or record[PHASE] is not Phase.WANTED:
                phase = record[PHASE] if record else "gone"
                self.unwanted[name] = f"its record is {phase}: nothing is created"
            elif not same_request(record, item):
                self.unwanted[name] = "its record has changed: nothing is created by the earlier one"
            self._know(name, record or item)
            if record and living:
                self._open.add(name)

    def _know(self, name: str, record: Item) -> None:
        nodes, empty = recorded(record), RecordedNode(record=str(record.get(ID) or ""))
        known = {item.key: nodes.get(item.member or 0, empty) for item in self._members[name]}
        self.nodes |= known
        self._stored |= known

    def of(self, owner: Owner) -> Owner:
        """Return an owner that knows the nodes' ids."""
        others = {other for entry in self.nodes.values() for other in entry.others}
        return replace(owner, recorded=dict(self.nodes), others=self._others | others)

    def enter(self, entries: Entries) -> dict[str, str]:
        """Write entries of members; return the fleets whose record couldn't be written, with the reason."""
        refused = {}
        for name, members in self._members.items():
            keys = [member.key for member in members]
            if all(key not in entries or entries[key] == self._stored.get(key) for key in keys):
                continue
            nodes = self.nodes | dict(entries)
            if name not in self._open:
                refused[name] = f"{name}: its record can't be written"
                continue
            try:
                self._saved.enter(name, self._all(name, nodes))
            except FleetError as error:
                refused[name] = str(error)
            else:
                written = {key: nodes[key] for key in keys if key in nodes}
                self.nodes |= written
                self._stored |= written
        return refused

    def _all(self, name: str, nodes: Entries) -> dict[int, RecordedNode]:
        """Return the entries of all members, also of those that this controller doesn't keep."""
        kept = {item.member or 0: nodes[item.key] for item in self._members[name] if item.key in nodes}
        places = {(item.zone, item.name) for item in kept.values()}
        rest = {
            member: RecordedNode(others=item.others) if (item.zone, item.name) in places else item
            for member, item in recorded(self._saved.last(name)).items()
        }  # its node was gone when another member got its place
        return {**rest, **kept}

    def note(
        self, members: Sequence[Node], view: View, owner: Owner, pending: Collection[str], *, write: bool
    ) -> Collection[str]:
        """Enter the ids of the members' nodes, and of those that somebody else made; return problems.

        Args:
            members: in their places.
            view: the observation.
            owner: of the nodes.
            pending: keys of the members with a request under way.
            write: to the records; else the controller that acts does.
        """
        settled = {member.key for member in members} - {*pending}
        entries = self.seen(members, view, owner, settled)
        if not write:
            self.nodes |= entries
            return ()
        return self.enter(entries).values()

    def seen(self, members: Sequence[Node], view: View, owner: Owner, settled: Collection[str]) -> Entries:
        """Return the entries that an observation changes.

        Args:
            members: in their places.
            view: the observation.
            owner: of the nodes.
            settled: keys of the members for which nothing was requested.
        """
        result = {}
        for member in members:
            entry, observed = self.nodes.get(member.key), view.node(member.name, member.zone)
            if entry is None or observed is None or (member.zone, member.name) != (entry.zone, entry.name):
                continue
            if owner.has(member, observed):
                if observed.instance != entry.instance:
                    result[member.key] = replace(entry, instance=observed.instance, requested=False)
                elif entry.requested and member.key in settled and observed.state == "READY":
                    result[member.key] = replace(entry, requested=False)
            elif _looks_ours(member, observed, owner, entry):
                result[member.key] = entry.with_other(observed.instance)
        return result


def _looks_ours(member: Node, observed: ObservedNode, owner: Owner, entry: RecordedNode) -> bool:
    """Return whether somebody else's node in a member's place has the member's labels."""
    labelled = owner.labels_of(member).items() <= observed.labels.items()
    return labelled and observed.state not in GOING and observed.instance not in entry.others
