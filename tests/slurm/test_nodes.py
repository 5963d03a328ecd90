"""Slurm's outputs as it printed them (tests/slurm/outputs/README.md), and what is no output of its."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm import jobs, keep
from slurm.errors import SlurmError
from slurm.nodes import SlurmNode, listed, nodes

OUTPUTS = Path(__file__).parent / "outputs"


def read(name: str) -> dict[str, SlurmNode]:
    return nodes((OUTPUTS / name).read_text("utf-8"))


def what(node: SlurmNode) -> str:
    return next(name for name in ("powering_up", "due", "out", "up") if getattr(node, name))


@pytest.mark.parametrize(("name", "expected"), [
    ("nodes-powered-down.txt", "out out out out"),
    ("nodes-powering-up.txt", "powering_up powering_up out out"),
    ("nodes-forced.txt", "out out out out"),
    ("nodes-lost.txt", "up up out out"),
    ("nodes-lost-later.txt", "out out out out"),
    ("nodes-mixed.txt", "powering_up powering_up up up powering_up"),
])  # fmt: skip
def test_what_slurm_wants_is_read_from_its_nodes(name: str, expected: str) -> None:
    assert [what(node) for node in read(name).values()] == expected.split()


def test_reasons_come_without_who_gave_them() -> None:
    forced = read("nodes-forced.txt")
    assert forced["tpu-0-w0"].reason.startswith("tpu: no capacity in us-east5-b (Stockout = 1)")
    assert "@" not in forced["tpu-0-w0"].reason
    assert forced["tpu-1-w0"].reason == ""
    mixed = read("nodes-mixed.txt")["tpu-1-w0"]
    assert (mixed.base, mixed.reason) == ("DOWN", "Node unexpectedly rebooted")
    assert mixed.held
    drained = read("nodes-drained.txt")["tpu-1-w0"]
    assert (drained.held, drained.powered_down) == (True, True)


@pytest.mark.parametrize(("base", "flags", "expected"), [
    ("ALLOCATED", "POWERED_DOWN", "due"), ("IDLE", "POWER_UP POWERED_DOWN", "due"),
    ("IDLE", "POWERING_DOWN COMPLETING", "up"), ("MIXED", "POWERING_DOWN", "up"), ("IDLE", "", "up"),
    ("IDLE", "DRAIN POWER_DOWN", "up"), ("DOWN", "POWERED_DOWN NOT_RESPONDING", "out"),
    ("DOWN", "NOT_RESPONDING", "up"), ("IDLE", "POWERING_DOWN", "out"),
    ("IDLE", "POWERING_UP", "powering_up"),
])  # fmt: skip
def test_a_node_is_one_of_four(base: str, flags: str, expected: str) -> None:
    node = SlurmNode("tpu-0-w0", base, frozenset({"CLOUD", *flags.split()}))
    assert what(node) == expected
    assert sum((node.powering_up, node.due, node.out, node.up)) == 1


@pytest.mark.parametrize("text", [
    "slurm_load_node error: Unable to contact slurm controller", "NodeName=a;b State=IDLE ",
    "NodeName=tpu-0-w0 State=$(reboot) x", f"NodeName={'a' * 65} State=IDLE x",
])  # fmt: skip
def test_what_is_no_node_is_refused(text: str) -> None:
    with pytest.raises(SlurmError, match="a line isn't a node"):
        nodes(text)


def test_no_node_is_no_line() -> None:
    assert nodes("No nodes in the system\n") == nodes("") == {}
    assert listed(["b", "a"]) == "a,b"


def test_jobs_have_places_by_priority() -> None:
    queue = jobs.parse((OUTPUTS / "squeue.txt").read_text("utf-8"))
    assert [(job.id, job.state, job.place) for job in queue] == [
        ("13_1", "CONFIGURING", 0), ("13_0", "CONFIGURING", 0), ("9", "PENDING", 1), ("10", "PENDING", 2),
        ("11", "PENDING", 3), ("12", "PENDING", 4), ("13_[2-3]", "PENDING", 5),
    ]  # fmt: skip
    assert queue[3].name == "odd | name"
    assert queue[0].nodes == "tpu-1-w1,tpu-2-w0"
    assert queue[3].why == "ReqNodeNotAvail, UnavailableNodes:tpu-1-w0"


@pytest.mark.parametrize("id_", ["12+1", "14_[1,3,5,7,9,...]", "14_[0-7:2%2]", "14_[1-3,9,...%4]"])
def test_a_job_of_several_parts_or_many_tasks_is_a_job(id_: str) -> None:
    (job,) = jobs.parse(f"{id_}|ann|tpu|PENDING|2|3|0:00|N/A|None||a")
    assert (job.id, job.place) == (id_, 1)


def test_a_queue_that_cant_be_read_hides_no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def queued() -> list[jobs.Job]:
        return jobs.parse("15|ann|tpu|RUNNING|1|3|0:01|N/A|None|tpu-0-w0|two\nlines")

    monkeypatch.setattr(keep, "call", lambda _: (OUTPUTS / "nodes-lost.txt").read_text("utf-8"))
    monkeypatch.setattr(keep, "queued", queued)
    known = keep.Scontrol().read()
    assert (known.nodes, known.jobs, known.running) == (read("nodes-lost.txt"), None, frozenset())


@pytest.mark.parametrize("line", ["x", "1|a|b|c|d|e|f|g|h|i|j", "1;2|a|b|c|1|2|f|g|h|i|j"])
def test_what_is_no_job_is_refused(line: str) -> None:
    with pytest.raises(SlurmError, match="a line isn't a job"):
        jobs.parse(line)


def test_a_name_with_control_characters_cant_move_the_cursor() -> None:
    (job,) = jobs.parse("1|ann|tpu|PENDING|2|3|0:00|N/A|None||a\x1b[2Jb")
    assert job.name == "a?[2Jb"
