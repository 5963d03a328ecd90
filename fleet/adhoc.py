"""Ad hoc fleets, outside the settings file: a record each in the controller's bucket, read by every command.

Each is an item of `tpu:slices` with an owner and a phase; with `stopWhenDone` it is deleted once its program
has ended. A node is created only for a record that wants it. A record is written only on the generation that
was read, and stays for a day when its fleet has ended.
"""

import json
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from fleet.errors import FleetError, FleetInputError
from fleet.google import Google
from fleet.ids import NODES, RecordedNode, SharedIdError, others_of, recorded, stored
from infra.google.client import RequestError
from infra.google.failures import Kind
from infra.settings.sources import path_of
from settings_schema import foreign
from settings_schema.foreign import ForeignError

Item = Mapping[str, Any]
NOTHING: Mapping[str, Item] = MappingProxyType({})
STOP_WHEN_DONE = "stopWhenDone"
PHASE, WHY, OWNER, ID = "phase", "why", "owner", "id"
# Start of an earlier program, whose end is none of the present one: fleet/ending.py, `start_s`.
SINCE = "sinceS"
REPLACING = "replacing"  # its hosts may still run the program before it
_VERSION, _FORMAT, _ENVIRONMENT = "version", 2, "environment"
WRITTEN = "writtenS"
_OF_RECORD = (PHASE, WHY, OWNER, ID, SINCE, REPLACING, NODES, _VERSION, _ENVIRONMENT, WRITTEN)
_KEPT_S = 86_400.0  # of a record that has ended
_BESIDE = (STOP_WHEN_DONE, *_OF_RECORD)
CHANGEABLE = frozenset({"bundle", "run", "image", "env", "secrets", STOP_WHEN_DONE})
"""Keys that hosts apply without being recreated."""
_MOST_READ = 4  # records that are read one by one; a listing is dearer than a reading


class Phase(StrEnum):
    """Phase of an ad hoc fleet, stored with its item; a record without one is wanted."""

    WANTED = "wanted"
    ENDING = "ending"  # written before the first deletion; nothing is created any more
    ENDED = "ended"  # written after the last one


class ConcurrentChangeError(FleetError):
    """Another command has changed the record since it was read."""


class RecordError(FleetError):
    """A record that this version can't follow."""


def slices(items: Iterable[Item]) -> list[dict[str, Any]]:
    """Return the items in the format of `tpu:slices`."""
    return [{key: value for key, value in item.items() if key not in _BESIDE} for item in items]


def wanted(item: Item) -> Item:
    """Return an item as a command asked for it: without what its record adds."""
    return {key: value for key, value in item.items() if key not in _OF_RECORD}


def same_request(record: Item, other: Item) -> bool:
    """Return whether two readings of a record differ in the ids of its nodes at most."""
    return _request(record) == _request(other)


def _request(record: Item) -> Item:
    return {key: value for key, value in record.items() if key not in (NODES, _VERSION)}


def owner(item: Item) -> str:
    """Return the owner of a record: the login's account, and where it was added from."""
    known = item.get(OWNER)
    account, place = (str(known.get(key) or "") for key in ("who", "from")) if known else ("", "")
    return f"{account} ({place})" if account and place else account or place or "an unknown owner"


def _shape(item: Item) -> dict[str, Any]:
    """Return an item's values that only a new node takes."""
    return {key: value for key, value in wanted(item).items() if key not in CHANGEABLE}


def held(item: Item) -> str:
    """Return whose an ad hoc fleet is, and its program."""
    runs = f"runs `{item['run']}`" if item.get("run") else "runs nothing"
    bundle = f", bundle {str(item['bundle'])[:8]}" if item.get("bundle") else ""
    return f"{item['name']} is a fleet already: its owner is {owner(item)}, it {runs}{bundle}"


def replaced(existing: Item, item: Item) -> Item:
    """Return an item for the record and the nodes of an existing fleet."""
    return {**item, **({ID: existing[ID]} if ID in existing else {})}


def in_file(environment: str, name: str, flag: str) -> str:
    """Return the problem of a new fleet whose name a slice of the settings' file has."""
    return f"{name}: Pulumi.{environment}.yaml has a slice of this name\n    fix: {flag} ANOTHER"


def require_down(environment: str, name: str, of_stack: Collection[str], flag: str) -> None:
    """Raise FleetInputError if a slice that is up, and that the file lacks, has a new fleet's name."""
    if name in of_stack:
        raise FleetInputError(
            f"{name}: a slice of this name is up, and {path_of(environment)} lacks it\n"
            f"    fix: {flag} ANOTHER, or this command in the folder whose Pulumi.{environment}.yaml has it"
        )


def require_same_slices(environment: str, existing: Item, item: Item, flag: str) -> None:
    """Raise FleetError if an existing fleet has other slices than an item, or its deletion has begun.

    `flag`: of the command, with which another name is given.
    """
    name = item["name"]
    if existing[PHASE] is not Phase.WANTED:
        fix = f"tpu fleet delete {environment} --slice {name}, then this command again"
        raise FleetError(f"{name}: its deletion has begun, and isn't over\n    fix: {fix}")
    if _shape(existing) != _shape(item):
        fix = f"{flag} ANOTHER, or tpu fleet delete {environment} --slice {name}"
        other = json.dumps(_shape(existing))
        raise FleetInputError(f"{held(existing)}, with other slices: {other}\n    fix: {fix}")


def twice_called(environment: str, name: str) -> str:
    """Return the remark on an ad hoc fleet whose name the settings file has too."""
    file, fix = f"Pulumi.{environment}.yaml", f"tpu fleet delete {environment} --slice {name}"
    why = f"{name}: {file} has a slice of this name, and an ad hoc fleet has it already"
    return (
        f"{why}; commands of the fleet know the ad hoc one alone\n    fix: {fix}, or another name in {file}"
    )


def described(
    kind: str, slices: Sequence[str], zones: Sequence[str], per_zone: int, *, spot: bool, run: str | None
) -> dict[str, Any]:
    """Return a fleet as an item of `tpu:slices`.

    Args:
        kind: accelerator type, such as v6e-8.
        slices: the name of the fleet, at most one.
        zones: its zones.
        per_zone: slices in each zone.
        spot: rent spot capacity.
        run: command line of the hosts; None: none.

    Raises:
        FleetError: no zones, or several names.
    """
    if not zones or len(slices) > 1:
        problem = f"{len(slices)} names" if zones else "no --zones"
        raise FleetInputError(
            f"--tpu-type {kind}: {problem}\n    fix: --zones us-east5-a,us-east5-b, and one --slice"
        )
    item: dict[str, Any] = {
        "name": slices[0] if slices else "adhoc", "acceleratorType": kind, "zones": [*zones],
        "count": per_zone * len(zones), "spot": spot,
    }  # fmt: skip
    return {**item, "run": run} if run else item


def _twice(where: str, problem: str) -> str:
    """Return why a record isn't followed that shares a node's id."""
    ids = "gcloud compute tpus tpu-vm describe NODE --zone=ZONE --format='value(id)'"
    return f"{where}: {problem}\n    fix: {ids} tells whose it is; repair the record, or delete it"


class AdHoc:
    """Records in the controller's bucket, one for each fleet.

    Attributes:
        unread: by the last `read`, why a record isn't followed, by the fleet's name.
        ended: by the last `read`, ids of the records that have ended.
        over: by the last `read`, the reason of their end, by the fleet's name.
        others: by the last `read`, ids of nodes that somebody else made in the place of a fleet's.
    """

    def __init__(
        self,
        google: Google,
        stack: str,
        environment: str = "",
        known: dict[str, tuple[str, int]] | None = None,
        *,
        lists: bool = True,
    ):
        """Create a reader and writer of a stack's records.

        Args:
            google: with the controller's bucket.
            stack: its id.
            environment: refuse records of another one.
            known: texts and generations by path, of earlier readers: each generation is read once.
            lists: `read` lists the records; else it takes all that are known.
        """
        self._google, self._stack, self._environment = google, stack, environment
        self._folder, self._lists = f"{stack}/fleets/", lists
        self._known = {} if known is None else known
        self._generations: dict[str, int] = {}
        self._last: dict[str, dict[str, Any]] = {}  # records as they were read or written last
        self.others: set[str] = set()
        self.unread: dict[str, str] = {}
        self.ended: set[str] = set()
        self.over: dict[str, str] = {}
        self._ended_s: dict[str, float] = {}

    def again(self, *, lists: bool = True) -> "AdHoc":
        """Return another reader, which requests only what has changed since this one's readings."""
        return AdHoc(self._google, self._stack, self._environment, self._known, lists=lists)

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the fleets that haven't ended, by name. Raises FleetError if the bucket doesn't answer."""
        self._generations.clear()
        self._last.clear()
        self.unread, self.ended, self.over, self._ended_s, self.others = {}, set(), {}, {}, set()
        records: dict[str, dict[str, Any]] = {}
        for path in self._read_listed() if self._lists else sorted(self._known):
            name = path.rpartition("/")[2].removesuffix(".json")
            try:
                item = self._parsed(path, name, self._known.get(path))
            except RecordError as error:
                self.unread[name] = str(error)
                continue
            for node in recorded(item or {}).values():
                self.others.update(node.others)
            if item and item[PHASE] is Phase.ENDED:
                self.ended.add(str(item.get(ID)))
                self.over[name] = str(item.get(WHY) or "without a reason")
                if not others_of(item):  # their nodes still have its labels
                    self._ended_s[name] = float(item.get(WRITTEN) or 0.0)
            elif item:
                records[name] = item
        for name, problem in self._shared(records).items():
            del records[name]
            self.unread[name] = problem
        return records

    def _shared(self, records: Mapping[str, Item]) -> dict[str, str]:
        """Return why records aren't followed that name a node of another one, too."""
        by_id: dict[str, list[str]] = {}
        for name, item in records.items():
            for node in recorded(item).values():
                by_id.setdefault(node.instance, []).append(name)
        return {
            name: _twice(f"gs://{self._google.controller_bucket}/{self._folder}{name}.json",
                         f"{' and '.join(several)} have both the id {instance}")
            for instance, several in by_id.items() if instance and len(several) > 1
            for name in several
        }  # fmt: skip

    def record(self, name: str) -> dict[str, Any] | None:
        """Return the present record of a fleet, ended or not; None: there is none. Raises FleetError."""
        path = f"{self._folder}{name}.json"
        self._request([path])
        return self._parsed(path, name, self._known.get(path))

    def now(self, names: Sequence[str]) -> tuple[dict[str, dict[str, Any] | None], dict[str, str]]:
        """Return the present records of some fleets, ended or not, and why others aren't known, by name."""
        paths = {name: f"{self._folder}{name}.json" for name in names}
        records: dict[str, dict[str, Any] | None] = {}
        unknown: dict[str, str] = {}
        try:
            if len(names) > _MOST_READ:
                self._read_listed()
            for name, path in paths.items():
                if len(names) <= _MOST_READ:
                    self._request([path])
                try:
                    records[name] = self._parsed(path, name, self._known.get(path))
                except RecordError as error:
                    unknown[name] = str(error)
        except FleetError as error:
            unknown |= {name: str(error) for name in names if name not in records}
        return records, unknown

    def keep(self, name: str, item: Item, phase: Phase = Phase.WANTED, why: str = "") -> dict[str, Any]:
        """Add a fleet, or replace the record that `read` returned; return the record.

        Args:
            name: its name.
            item: as `tpu:slices` has one, with `stopWhenDone`, `owner` (default: the login), and `id`,
                `sinceS` and `replacing` of a record whose nodes it keeps.
            phase: of the fleet.
            why: reason of its end.

        Raises:
            ConcurrentChangeError: there is another record by now.
            FleetError: the bucket doesn't answer.
        """
        ending = phase is item.get(PHASE) is Phase.ENDING  # since then
        record = {
            **wanted(item), PHASE: phase, **({WHY: why} if why else {}),
            **{key: item[key] for key in (SINCE, REPLACING) if item.get(key)},
            OWNER: item.get(OWNER) or self._google.caller(), ID: item.get(ID) or uuid.uuid4().hex[:12],
            WRITTEN: (item.get(WRITTEN) if ending else None) or time.time(),
            **({_ENVIRONMENT: self._environment} if self._environment else {}),
        }  # fmt: skip
        before = self._last.get(name)
        try:
            return self._replace(name, record)
        except ConcurrentChangeError:
            # A controller may have entered ids since: they are kept.
            later = self.again()
            present = later.record(name)
            if not (before and present and same_request(before, present)):
                raise  # again at a second call: this reader hasn't read what is there
            self._last[name], self._generations[name] = present, later.generation(name)
            return self._replace(name, record)

    def generation(self, name: str) -> int:
        """Return the generation of a record as it was read or written last; 0: there was none."""
        return self._generations.get(name, 0)

    def last(self, name: str) -> dict[str, Any]:
        """Return a record as it was read or written last."""
        return self._last[name]

    def enter(self, name: str, nodes: Mapping[int, RecordedNode]) -> dict[str, Any]:
        """Write the ids of a fleet's nodes, on the generation that was read last; return the record.

        Raises:
            ConcurrentChangeError: there is another record by now.
            FleetError: the bucket doesn't answer.
        """
        return self._write(name, {**self._last[name], NODES: stored(nodes), _VERSION: _FORMAT})

    def _replace(self, name: str, record: Item) -> dict[str, Any]:
        """Write a record with the ids of the one that was read, if that is of the same nodes."""
        before = self._last.get(name, {})
        same = bool(before) and before.get(ID, record[ID]) == record[ID]
        nodes = before[NODES] if same else stored(others_of(before))
        return self._write(name, {**record, NODES: nodes, _VERSION: _FORMAT})

    def _write(self, name: str, record: dict[str, Any]) -> dict[str, Any]:
        path = f"{self._folder}{name}.json"
        before, text = self.generation(name), json.dumps(record)
        try:
            self._generations[name] = self._google.write(path, text, before)
        except RequestError as error:
            if error.failure.kind is not Kind.INVALID:
                raise self._error(path, str(error)) from None
            where = f"gs://{self._google.controller_bucket}/{path}"
            raise ConcurrentChangeError(f"{where}: changed concurrently; repeat the command") from None
        self._known[path] = text, self._generations[name]
        self._last[name] = record
        return record

    def prune(self) -> None:
        """Remove the records that `read` found ended, a day after their end: commands read all records."""
        for name, ended_s in self._ended_s.items():
            if 0.0 < ended_s < time.time() - _KEPT_S:
                with suppress(RequestError):  # another controller's turn
                    self._google.remove(f"{self._folder}{name}.json", self._generations[name])

    def _read_listed(self) -> list[str]:
        """Return the paths of all records, each known by its newest generation. Raises FleetError."""
        try:
            listed = self._google.saved(self._folder)
        except RequestError as error:
            if error.failure.kind is not Kind.MISSING:  # no bucket, no record
                raise FleetError(f"gs://{self._google.controller_bucket}: {error}") from None
            listed = {}
        for path in self._known.keys() - listed.keys():
            del self._known[path]
        self._request([path for path, now in listed.items() if self._known.get(path, ("", 0))[1] != now])
        return [*listed]

    def _request(self, paths: Sequence[str]) -> None:
        """Read records anew; those that are gone are known no more. Raises FleetError."""
        try:
            results = self._google.read_all(paths)
        except RequestError as error:
            where = paths[0] if len(paths) == 1 else self._folder
            raise self._error(where, str(error)) from None
        for path, result in zip(paths, results, strict=True):
            if result is None:
                self._known.pop(path, None)
            else:
                self._known[path] = result

    def _parsed(self, path: str, name: str, result: tuple[str, int] | None) -> dict[str, Any] | None:
        """Return the fleet of a record that was read; None if it was removed since the listing."""
        if result is None:
            return None
        text, generation = result
        where = f"gs://{self._google.controller_bucket}/{path}"
        try:
            item = foreign.parse(text)
            self._require_known(item, name, where)
            phase = Phase(foreign.text(item, PHASE) or Phase.WANTED)
            foreign.group(item, OWNER)
            foreign.text(item, ID, "[0-9a-z]{1,63}")
            foreign.number(item, WRITTEN), foreign.number(item, SINCE)
            recorded(item)
        except SharedIdError as error:
            raise RecordError(_twice(where, str(error))) from None
        except ForeignError as error:
            raise RecordError(f"{where}: can't be read: {error}\n    fix: repair it, or delete it") from None
        self._last[name], self._generations[name] = {**item, PHASE: phase}, generation
        return self._last[name]

    def _require_known(self, item: Item, name: str, where: str) -> None:
        """Raise RecordError for a record of another version, another environment or another name."""
        newer = "fix: update this checkout, or use the one that wrote it"
        if (version := foreign.count(item, _VERSION)) != _FORMAT:
            fix = newer if version > _FORMAT else "fix: end the fleet with the version that wrote it"
            raise RecordError(f"{where}: its version is {version}, known is {_FORMAT}\n    {fix}")
        if (phase := foreign.text(item, PHASE)) not in ("", *Phase):
            raise RecordError(f"{where}: its phase {phase[:40]!a} isn't known\n    {newer}")
        if (other := foreign.text(item, _ENVIRONMENT)) and self._environment not in ("", other):
            fix = f"tpu fleet list {other[:40]}, or delete the object"
            raise RecordError(f"{where}: is of the environment {other[:40]}\n    fix: {fix}")
        if not foreign.text(item, ID):  # it couldn't be told from the next one of its name
            raise RecordError(f"{where}: its id is missing\n    fix: repair it, or delete it")
        if (called := foreign.text(item, "name")) != name:
            raise RecordError(f"{where}: its name is {called[:40]!a}\n    fix: repair it, or delete it")

    def _error(self, path: str, why: str) -> FleetError:
        return FleetError(f"gs://{self._google.controller_bucket}/{path}: {why}")
