"""The daemon with the fleet's own code, beside a cloud and a Slurm that answer as they are reported."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fleet import environment, owned, removal
from fleet.adhoc import AdHoc, Item
from fleet.environment import opened
from fleet.request import FleetCommand
from infra.engine.settings import parse
from infra.errors import Problem, SettingsError
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from infra.settings.schema import ADDED_SLICES, Settings
from infra.settings.sources import as_pulumi_hands_it_over
from slurm import keep, power
from slurm.decide import FAILED, HELD, State
from slurm.errors import SlurmError
from slurm.keep import Keeper
from tests.fleet.conftest import OWNER
from tests.fleet.world import Cloud
from tests.slurm import lab
from tests.slurm.lab import Nodes

UP = ("ALLOCATED", "POWERING_UP")


class Cluster:
    """A daemon beside a cloud."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, given: Mapping[str, Any] | None = None):
        self.settings, self.given = lab.settings(given), given
        self.cloud, self.slurm = Cloud(self.settings), Nodes(self.settings)
        self.now_s = 0.0
        self._enter(monkeypatch)
        self.begin()

    def begin(self) -> None:
        """Begin a new daemon, as after a kill."""
        self.keeper = Keeper(
            self.settings, self.cloud, OWNER.stack, lab.REACHED, self.slurm, lambda: self.now_s  # type: ignore[arg-type]
        )  # fmt: skip

    def _enter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def read(_: str, slices: Sequence[Mapping[str, Any]] = ()) -> Settings:
            if not slices:
                return self.settings
            values = lab.values(self.given)
            values["tpu:slices"] = [*values["tpu:slices"], *slices]
            return parse("dev", as_pulumi_hands_it_over(values, "f"), "f", (), (ADDED_SLICES,))

        for module in (environment, owned):
            monkeypatch.setattr(module, "from_file", read)
        monkeypatch.setattr(environment, "read_stack", lambda _: self.cloud.stack)
        monkeypatch.setattr(environment, "Google", lambda *_: self.cloud)
        for module in (removal, owned):
            monkeypatch.setattr(module, "_POLL_S", 0.01)

    def look(self, times: int = 1, seconds: float = 10.0) -> None:
        for _ in range(times):
            self.now_s += seconds
            self.cloud.at_s += seconds
            try:
                known = self.slurm.read()
            except SlurmError:
                known = None
            self.keeper.look(known)

    def phase(self, name: str) -> str:
        record = AdHoc(self.cloud, OWNER.stack).record(name)  # type: ignore[arg-type]
        return str(record["phase"]) if record else "none"

    @property
    def nodes(self) -> list[str]:
        """Return the states of the living nodes that aren't of the settings' file."""
        return [state for name, state in self.cloud.states.items() if state and name != "train"]

    def running(self, name: str = "tpu-0") -> None:
        """Bring a slice to where a job runs on it."""
        self.slurm.set(name, *UP)
        self.look()
        self.slurm.set(name, "ALLOCATED")
        self.look()


@pytest.fixture(name="cluster")
def _cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def test_a_slice_comes_when_slurm_asks_and_goes_when_all_its_hosts_are_given_up(cluster: Cluster) -> None:
    cluster.look(2)
    assert (cluster.phase("tpu-0"), cluster.nodes) == ("none", [])
    cluster.slurm.set("tpu-0", *UP)
    cluster.look()
    record = AdHoc(cluster.cloud, OWNER.stack).record("tpu-0") or {}  # type: ignore[arg-type]
    assert cluster.nodes == ["READY"], "in the same look"
    assert (record["count"], record["spot"], record["owner"]["from"]) == (1, True, "slurm dev")
    assert record["run"].startswith("slurmd 10.0.0.2 tpu-0 ")
    cluster.slurm.set("tpu-0", "ALLOCATED")
    cluster.look(3)
    cluster.slurm.set("tpu-0-w0", "IDLE", "COMPLETING")
    for worker in (1, 2, 3):
        cluster.slurm.set(f"tpu-0-w{worker}", "IDLE", "POWERING_DOWN")
    cluster.look()
    assert (cluster.phase("tpu-0"), cluster.nodes) == ("wanted", ["READY"]), "one still completes"
    cluster.slurm.set("tpu-0", "IDLE", "POWERING_DOWN")
    cluster.look()
    assert (cluster.phase("tpu-0"), cluster.nodes) == ("ended", [])


@pytest.mark.parametrize(("paid", "scheduling"), [
    ({"reserved": True, "spot": None}, {"preemptible": False, "spot": False, "reserved": True}),
    ({"spot": True}, {"preemptible": False, "spot": True, "reserved": False}),
    ({"spot": None}, None),
])  # fmt: skip
def test_google_is_asked_for_a_slice_that_is_paid_as_its_nodeset_says(
    monkeypatch: pytest.MonkeyPatch, paid: Mapping[str, Any], scheduling: Mapping[str, bool] | None
) -> None:
    nodeset = {key: value for key, value in {**lab.NODESET, **paid}.items() if value is not None}
    cluster = Cluster(monkeypatch, {"slurm:nodesets": [nodeset]})
    bodies, create = list[Mapping[str, Any]](), cluster.cloud.create
    monkeypatch.setattr(cluster.cloud, "create", lambda *of: (bodies.append(of[-1]), create(*of))[1])
    cluster.slurm.set("tpu-0", *UP)
    cluster.look()
    (body,) = bodies
    assert body.get("schedulingConfig") == scheduling


def test_a_preempted_slice_frees_its_job_and_comes_again_when_that_asks(cluster: Cluster) -> None:
    cluster.running()
    (node,) = (name for name, state in cluster.cloud.states.items() if state and name != "train")
    cluster.cloud.states[node] = "PREEMPTED"
    cluster.look(2)
    assert cluster.slurm.updates[-1].state is State.FORCE
    assert cluster.slurm.updates[-1].reason == f"{HELD}Google says PREEMPTED"
    assert ("delete", node) not in cluster.cloud.requests, "nobody recreates it meanwhile"
    cluster.look()
    assert (cluster.phase("tpu-0"), cluster.nodes) == ("ended", [])
    cluster.slurm.set("tpu-0", *UP)
    cluster.look()
    assert (cluster.phase("tpu-0"), cluster.nodes) == ("wanted", ["READY"])


def test_a_node_of_the_slice_that_gets_another_stacks_id_is_named_and_left_to_its_job(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cluster.running()
    (node,) = (name for name, state in cluster.cloud.states.items() if state and name != "train")
    labels, before = cluster.cloud.labels[node], len(cluster.slurm.updates)
    requests = len(cluster.cloud.requests)
    cluster.cloud.labels[node] = {**labels, "stack": "0000000"}
    cluster.look(3, seconds=200)
    assert "it is of another stack, 0000000" in caplog.text
    assert f"give it the label stack={OWNER.stack}" in caplog.text
    assert (cluster.slurm.updates[before:], cluster.cloud.requests[requests:]) == ([], [])
    assert cluster.phase("tpu-0") == "wanted"
    cluster.cloud.labels[node] = labels
    cluster.look(2)
    assert (cluster.slurm.updates[before:], cluster.cloud.requests[requests:]) == ([], [])


def test_a_slice_whose_place_another_stack_has_frees_its_job_with_the_reason(cluster: Cluster) -> None:
    cluster.running()
    (node,) = (name for name, state in cluster.cloud.states.items() if state and name != "train")
    labels = {**cluster.cloud.labels[node], "stack": "0000000"}
    cluster.slurm.set("tpu-0", "IDLE", "POWERING_DOWN")
    cluster.look(2)
    cluster.cloud.stray("theirs", "us-east5-b", labels=labels)
    before = len(cluster.cloud.requests)
    cluster.slurm.set("tpu-0", *UP)
    cluster.look(3)
    assert cluster.slurm.updates[-1].reason == f"{HELD}it is of another stack, 0000000"
    assert cluster.cloud.requests[before:] == []


def test_without_capacity_jobs_are_freed_and_the_nodes_kept_from_them_until_it_is_tried_again(
    cluster: Cluster,
) -> None:
    cluster.cloud.dry = {"us-east5-b"}
    cluster.slurm.set("tpu-0", *UP)
    cluster.look(3)
    assert {update.state for update in cluster.slurm.updates} == {State.FORCE}
    assert "us-east5-b" in cluster.slurm.updates[-1].reason
    cluster.look(2)
    cluster.slurm.set("tpu-0", "IDLE", "POWERED_DOWN")
    cluster.look()
    assert cluster.slurm.updates[-1].state is State.DRAIN
    assert cluster.phase("tpu-0") == "ended"
    cluster.cloud.dry = set()
    cluster.look(2, seconds=60)
    assert cluster.slurm.updates[-1].state is State.RESUME
    cluster.slurm.set("tpu-0", *UP)
    cluster.look()
    assert cluster.nodes == ["READY"]


@pytest.mark.parametrize("kind", [Kind.QUOTA, Kind.PERMISSION])
def test_what_people_must_mend_ends_the_request_and_is_the_nodes_reason(cluster: Cluster, kind: Kind) -> None:
    cluster.cloud.failure = Failure(kind, "Quota limit 'TPUV6E' has been exceeded")
    cluster.slurm.set("tpu-0", *UP)
    cluster.look(3)
    cluster.slurm.set("tpu-0", "IDLE", "POWERED_DOWN")
    cluster.look(3)
    assert cluster.phase("tpu-0") == "ended"
    held = cluster.slurm.nodes["tpu-0-w0"]
    assert "DRAIN" in held.flags
    assert "TPUV6E" in held.reason
    cluster.cloud.failure = None
    cluster.look(seconds=901)
    assert "DRAIN" not in cluster.slurm.nodes["tpu-0-w0"].flags


def test_a_slice_above_the_budget_isnt_written_and_the_reason_is_slurms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(monkeypatch, {"fleet:dollarsPerHour": 23})
    cluster.slurm.set("tpu-0", *UP)
    cluster.look(2)
    assert cluster.phase("tpu-0") == "none"
    assert "fleet:dollarsPerHour allows $23" in cluster.slurm.updates[-1].reason


def test_static_slices_are_called_without_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, {"slurm:nodesets": [{**lab.NODESET, "nodeCountStatic": 4}]})
    cluster.look(2)
    assert [update.state for update in cluster.slurm.updates] == [State.UP]
    assert cluster.nodes == ["READY"]
    assert cluster.phase("tpu-1") == "none"


def test_hosts_that_boot_and_dont_join_are_deleted_and_not_asked_for_again(cluster: Cluster) -> None:
    cluster.slurm.set("tpu-0", *UP)
    cluster.look(2)
    cluster.slurm.set("tpu-0", "DOWN", "POWERED_DOWN", reason="ResumeTimeout reached")
    cluster.look(5)
    assert (cluster.phase("tpu-0"), cluster.nodes) == ("ended", [])
    assert cluster.slurm.nodes["tpu-0-w0"].reason == f"{FAILED}the hosts of tpu-0 booted, and didn't join"
    assert "DRAIN" in cluster.slurm.nodes["tpu-0-w0"].flags


def test_a_record_of_another_owner_is_left_alone_and_reported(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    item = {"name": "tpu-0", "acceleratorType": "v6e-8", "zones": ["us-east5-b"], "count": 1}
    AdHoc(cluster.cloud, OWNER.stack, "dev").keep("tpu-0", item)  # type: ignore[arg-type]
    cluster.slurm.set("tpu-0", *UP)
    cluster.look(3)
    assert cluster.phase("tpu-0") == "wanted"
    assert cluster.slurm.updates[-1].state is State.FORCE
    reported = [entry.message for entry in caplog.records if "none of this cluster's" in entry.message]
    assert len(reported) == 1
    assert "tpu-0 is a fleet of ann@example.com (ann@laptop)" in reported[0]


def test_a_record_that_a_person_ends_frees_the_job_at_once(cluster: Cluster) -> None:
    cluster.running()
    assert removal.delete(FleetCommand("dev", slices=("tpu-0",), yes=True)) == 0
    cluster.look()
    assert cluster.slurm.updates[-1].state is State.FORCE
    assert "deleted by a command" in cluster.slurm.updates[-1].reason


def test_a_record_that_cant_be_read_ends_no_job(cluster: Cluster) -> None:
    cluster.running()
    name = f"{OWNER.stack}/fleets/tpu-0.json"
    cluster.cloud.objects[name] = "[", cluster.cloud.objects[name][1] + 1
    cluster.look(3)
    assert (cluster.slurm.updates, cluster.nodes) == ([], ["READY"])


@pytest.mark.parametrize("silent", ["slurm", "bucket"])
def test_without_an_answer_nothing_is_ended_and_jobs_stay(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    cluster.running()

    def read(_: str) -> None:
        raise RequestError(Failure(Kind.TRANSIENT, "503"))

    if silent == "slurm":
        cluster.slurm.silent = True
    else:
        monkeypatch.setattr(cluster.cloud, "read", read)
    cluster.look(3)
    assert (cluster.slurm.updates, cluster.nodes) == ([], ["READY"])


def test_beside_a_monitor_records_are_written_and_that_acts(cluster: Cluster) -> None:
    monitor = opened(FleetCommand("dev")).controller(lead=True)
    monitor.step()
    cluster.slurm.set("tpu-0", *UP)
    cluster.look(2)
    assert (cluster.phase("tpu-0"), cluster.nodes) == ("wanted", [])
    monitor.leave()
    cluster.look(2)
    assert cluster.nodes == ["READY"]


def test_a_slice_that_the_settings_dont_have_any_more_is_drained_and_ended(cluster: Cluster) -> None:
    cluster.running("tpu-1")
    cluster.settings = lab.settings({"slurm:nodesets": [{**lab.NODESET, "nodeCountDynamicMax": 4}]})
    cluster.begin()
    cluster.look()
    assert cluster.slurm.updates[-1].state is State.ASAP
    assert cluster.phase("tpu-1") == "wanted"
    cluster.look()
    assert (cluster.phase("tpu-1"), cluster.nodes) == ("ended", [])


def test_a_daemon_that_starts_again_goes_on_without_a_request(cluster: Cluster) -> None:
    cluster.slurm.set("tpu-0", *UP)
    cluster.begin()
    cluster.look()
    assert cluster.nodes == ["READY"]
    cluster.slurm.set("tpu-0", "IDLE", "POWERED_DOWN")
    cluster.begin()
    cluster.look()
    assert cluster.nodes == []


def test_a_request_ends_the_pause_and_is_taken(cluster: Cluster, tmp_path: Path) -> None:
    pauses = list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            assert power.main([str(tmp_path), "resume", "tpu-0-w[0-3]"]) == 0

    looks = list[int]()

    def over() -> bool:
        return len(looks) == 2

    original = cluster.keeper.look
    cluster.keeper.look = lambda known: looks.append(len(pauses)) or original(known)  # type: ignore[method-assign, func-returns-value]
    (tmp_path / "0.json").write_text("[")
    keep.keep(cluster.keeper, cluster.slurm, tmp_path, over, sleep)
    assert looks == [0, 2], "the second look came at once"
    assert not [*tmp_path.iterdir()]


def test_slurm_is_read_once_a_look_for_all_that_goes_by_it(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given, readings, original = list[object](), list[object](), cluster.slurm.read

    def read() -> object:
        readings.append(original())
        return readings[-1]

    cluster.slurm.read = read  # type: ignore[method-assign, assignment]
    look = cluster.keeper.look
    cluster.keeper.look = lambda known: given.append(known) or look(known)  # type: ignore[method-assign, func-returns-value]
    keep.keep(
        cluster.keeper, cluster.slurm, tmp_path, lambda: len(given) == 6, lambda _: None, [given.append] * 2
    )
    assert readings == given[::3] == given[1::3] == given[2::3]
    cluster.slurm.silent = True
    given.clear()
    watched = list[object]()
    keep.keep(
        cluster.keeper, cluster.slurm, tmp_path, lambda: len(given) == 3, lambda _: None, [given.append] * 2,
        watched.append,
    )  # fmt: skip
    assert given == [None] * 3, "the fleet is looked at all the same, and nothing else is done"
    assert watched == given, "and that Slurm is silent is reported"
    assert caplog.text.count("Unable to contact slurm controller") == 1


MANY = {"slurm:nodesets": [{**lab.NODESET, "nodeCountDynamicMax": 80}]}


def test_a_record_that_this_program_wrote_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, read = Cluster(monkeypatch, MANY), list[str]()
    original = cluster.cloud.read
    monkeypatch.setattr(cluster.cloud, "read", lambda name: read.append(name) or original(name))
    for number in range(5):
        cluster.slurm.set(f"tpu-{number}", *UP)
    cluster.look(3)
    assert len(cluster.nodes) == 5
    cluster.look(3)
    assert not [name for name in read if "/fleets/" in name]
    cluster.slurm.set("tpu-3", "IDLE", "POWERING_DOWN")
    cluster.look(2)
    assert cluster.phase("tpu-3") == "ended"
    assert f"{OWNER.stack}/fleets/tpu-3.json" in read[len(read) // 2 :], "what has changed is read"


def test_records_are_listed_once_a_look(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    listed, original = list[str](), cluster.cloud.saved
    monkeypatch.setattr(cluster.cloud, "saved", lambda prefix: listed.append(prefix) or original(prefix))
    cluster.running()
    listed.clear()
    cluster.look(4)
    assert listed.count(f"{OWNER.stack}/fleets/") == 4
    cluster.slurm.silent = True
    assert removal.delete(FleetCommand("dev", slices=("tpu-0",), yes=True)) == 0
    cluster.look()
    assert cluster.keeper._last
    assert not cluster.keeper._last.fleet.adhoc, "without Slurm the fleet lists them"


def test_one_slice_that_is_refused_keeps_no_other_from_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, MANY)
    want = cluster.keeper._fleets.want

    def refusing(records: AdHoc, fleets: Mapping[str, Item], items: Sequence[Item]) -> None:
        if "tpu-3" in {item["name"] for item in items}:
            raise SettingsError("f", [Problem("tpu-3", "it", "a rule", "a fix")])
        want(records, fleets, items)

    monkeypatch.setattr(cluster.keeper._fleets, "want", refusing)
    for number in range(5):
        cluster.slurm.set(f"tpu-{number}", *UP)
    cluster.look(2)
    wanted = [number for number in range(5) if cluster.phase(f"tpu-{number}") == "wanted"]
    assert wanted == [0, 1, 2, 4]
    assert {host for update in cluster.slurm.updates for host in update.hosts} == {
        f"tpu-3-w{worker}" for worker in range(4)
    }


def test_a_reason_is_one_line_for_slurm() -> None:
    assert keep._one_line('a "b"\n    fix: c') == "a 'b'"
    assert len(keep._one_line("x" * 1000)) == 250
    assert json.dumps(keep._one_line("a\x00b\tc"))
