"""A task's place by the variables of a real srun (22.05.8, two slices of two hosts), as recorded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from workload import place, slurm
from workload.errors import ConfigError

RECORDED = Path(__file__).with_name("srun-2x2.env")
MEGASCALE = {
    "SLICE_COUNT": "2",
    "MEGASCALE_COORDINATOR_ADDRESS": "10.9.0.20:8080",
    "MEGASCALE_PORT": "8080",
    "MEGASCALE_NUM_SLICES": "2",
}


def task(**changes: str) -> dict[str, str]:
    """Return the variables of task 2, the first host of the second slice."""
    lines = RECORDED.read_text("utf-8").splitlines()
    recorded = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    return {name: value for name, value in (recorded | changes).items() if value}


def of(number: int, **changes: str) -> dict[str, str]:
    slice_id, worker = divmod(number, 2)
    name = f"tpu-{slice_id}-w{worker}"
    own = {
        "SLURM_PROCID": str(number),
        "SLURM_NODEID": str(number),
        "SLURMD_NODENAME": name,
        "SLURM_TOPOLOGY_ADDR": f"tpu.tpu-{slice_id}.{name}",
    }
    return place.of(task(**own | changes))


def test_each_task_of_two_slices_knows_its_number_its_slice_and_the_first_host() -> None:
    for number in range(4):
        slice_id = str(number // 2)
        assert of(number) == {
            "WORKER_ID": str(number),
            "WORKER_COUNT": "4",
            "COORDINATOR_ADDRESS": "10.9.0.20:8476",
            "SLICE_ID": slice_id,
            "MEGASCALE_SLICE_ID": slice_id,
            **MEGASCALE,
        }


def test_a_step_on_one_slice_has_no_megascale_variables() -> None:
    step = {"SLURM_STEP_NODELIST": "tpu-1-w[0-1]", "SLURM_NTASKS": "2", "SLURM_PROCID": "1"}
    host = {"SLURMD_NODENAME": "tpu-1-w1", "SLURM_TOPOLOGY_ADDR": "tpu.tpu-1.tpu-1-w1"}
    assert place.of(task(**step, **host)) == {
        "WORKER_ID": "1",
        "WORKER_COUNT": "2",
        "COORDINATOR_ADDRESS": "10.9.0.30:8476",
    }


def test_a_slice_of_one_host_is_alone() -> None:
    step = {"SLURM_STEP_NODELIST": "tpu-1-w0", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
    assert place.of(task(**step))["WORKER_COUNT"] == "1"


def test_what_the_hosts_boot_or_the_batch_host_left_counts_for_nothing() -> None:
    left = {"WORKER_ID": "0", "WORKER_COUNT": "2", "COORDINATOR_ADDRESS": "10.9.0.30:8476"}
    assert of(3, **left) == of(3)


def test_the_batch_script_is_no_task() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "workload", "launch", "--", "true"],
        env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "tpu-0-w[0-1]"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"SLURM_NTASKS": "8"}, "SLURM_NTASKS"),
        ({"SLURM_PROCID": "3"}, "SLURM_PROCID"),
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID"),
        ({"SLURMD_NODENAME": ""}, "SLURM_PROCID"),
        ({"SLURM_TOPOLOGY_ADDR": "tpu-1-w0"}, "SLURM_TOPOLOGY_ADDR"),
        ({"SLURM_TOPOLOGY_ADDR": "tpu.tpu-0.tpu-1-w0"}, "SLURM_TOPOLOGY_ADDR"),
        ({"SLURM_NODE_ALIASES": "(null)"}, "SLURM_NODE_ALIASES"),
        ({"SLURM_STEP_NODELIST": "cpu[0-3]"}, "SLURM_STEP_NODELIST"),
        ({"SLURM_STEP_NODELIST": "tpu-0-w[0-1"}, "SLURM_STEP_NODELIST"),
        ({"SLURM_STEP_NODELIST": "tpu-0-w[0-2],tpu-1-w0"}, "SLURM_STEP_NODELIST"),
        ({"WORKER_COUNT": "4"}, "SLURM_STEP_NODELIST"),  # half of each slice
    ],
)
def test_a_task_whose_place_is_uncertain_is_refused(changes: dict[str, str], wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        place.of(task(**changes))
    assert f"${wrong}" in [problem.path for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("a-0-w0", ["a-0-w0"]),
        ("a-0-w[0-1],b-2-w[0,3]", ["a-0-w0", "a-0-w1", "b-2-w0", "b-2-w3"]),
        ("a-[0-1]-w[0-1]", ["a-0-w0", "a-0-w1", "a-1-w0", "a-1-w1"]),
        ("a-[08-10]", ["a-08", "a-09", "a-10"]),
        ("a-[x]", []),
    ],
)
def test_lists_of_hosts(text: str, names: list[str]) -> None:
    assert slurm.expand(text) == names
