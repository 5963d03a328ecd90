"""A worker's place in a job, from what its launcher left in the environment."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.limits import HANG_S
from workload import place
from workload.errors import ConfigError
from workload.host import places
from workload.host.metadata import HostDescription

JOBSET = {"JOB_SLICE": "1", "JOB_WORKER": "2", "JOB_SLICES": "2", "JOB_HOSTS": "4"}
JOBSET |= {"JOB_COORDINATOR": "a-slice-0-0.a"}


def test_a_jobset_of_two_slices() -> None:
    assert place.of(JOBSET) == {
        "WORKER_ID": "6",
        "WORKER_COUNT": "8",
        "COORDINATOR_ADDRESS": "a-slice-0-0.a:8476",
        "SLICE_ID": "1",
        "SLICE_COUNT": "2",
        "MEGASCALE_COORDINATOR_ADDRESS": "a-slice-0-0.a:8080",
        "MEGASCALE_PORT": "8080",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
    }


def test_every_worker_of_every_slice_has_its_own_number() -> None:
    numbers = [
        place.of({**JOBSET, "JOB_SLICE": str(slice_id), "JOB_WORKER": str(worker)})["WORKER_ID"]
        for slice_id in range(2)
        for worker in range(4)
    ]
    assert numbers == [str(number) for number in range(8)]


def test_a_single_slice_has_no_megascale_variables() -> None:
    assert place.of({**JOBSET, "JOB_SLICES": "1", "JOB_SLICE": "0"}) == {
        "WORKER_ID": "2",
        "WORKER_COUNT": "4",
        "COORDINATOR_ADDRESS": "a-slice-0-0.a:8476",
    }


HOST = {"WORKER_ID": "2", "WORKER_COUNT": "4", "COORDINATOR": "10.0.0.2"}


def test_a_tpu_vm_and_a_pod_of_a_single_slice_have_the_same_variables() -> None:
    pod = {**JOBSET, "JOB_SLICES": "1", "JOB_SLICE": "0", "JOB_COORDINATOR": "10.0.0.2"}
    assert place.of_host(HOST) == place.of(pod)


def test_the_slices_of_a_job_on_tpu_vms_and_of_a_jobset_have_the_same_variables() -> None:
    node = HostDescription("b", 2, 4, "bucket", 20.0, job="a", slices=("a", "b"))
    lines = places.environment(node, "10.0.0.2:8476").splitlines()
    assert dict(line.split("=", 1) for line in lines) == place.of({**JOBSET, "JOB_COORDINATOR": "10.0.0.2"})
    assert node.meeting("job").worker == 6


def test_the_boot_prints_a_hosts_place() -> None:
    command = [sys.executable, "-m", "workload.host", "place"]
    done = subprocess.run(command, env={"PATH": "", **HOST}, capture_output=True, text=True, check=False)
    assert done.stdout == "WORKER_ID=2\nWORKER_COUNT=4\nCOORDINATOR_ADDRESS=10.0.0.2:8476\n"
    wrong = {**HOST, "WORKER_ID": "4", "COORDINATOR": ""}
    done = subprocess.run(command, env=wrong, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "$WORKER_ID" in done.stderr
    assert "$COORDINATOR" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("environment", [{}, {"WORKER_COUNT": "4", **JOBSET}])
def test_what_is_alone_or_knows_its_place_is_left_as_it_is(environment: dict[str, str]) -> None:
    assert place.of(environment) == {}


def test_all_that_is_wrong_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        place.of({**JOBSET, "JOB_SLICE": "2", "JOB_WORKER": "x", "JOB_COORDINATOR": "a:1"})
    keys = [problem.path for problem in caught.value.problems]
    assert keys == ["$JOB_SLICE", "$JOB_WORKER", "$JOB_COORDINATOR"]
    with pytest.raises(ConfigError, match="5 problems"):
        place.of({"JOB_SLICE": ""})


def launch(*line: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "workload", "launch", "--", *line]
    environment = {"PATH": "/usr/bin:/bin", **JOBSET, **more}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_program_takes_over_with_its_place_and_its_own_status() -> None:
    done = launch("sh", "-c", "echo $WORKER_ID of $WORKER_COUNT; exit 7")
    assert done.stdout.splitlines()[-1] == "6 of 8"
    assert done.returncode == 7


def test_the_folder_of_a_job_is_there_when_its_program_begins(tmp_path: Path) -> None:
    line = ("sh", "-c", 'cd "$CHECKPOINT_DIR" && touch state.npz')
    assert launch(*line, CHECKPOINT_DIR=f"{tmp_path}/jobs/vision/a").returncode == 0
    assert (tmp_path / "jobs/vision/a/state.npz").is_file()
    done = launch(*line, CHECKPOINT_DIR=f"{tmp_path}/jobs/vision/a/state.npz")
    assert (done.returncode, "$CHECKPOINT_DIR" in done.stderr) == (2, True)


@pytest.mark.parametrize("line", [(), ("no-such-program",)])
def test_a_program_that_is_not_there_is_refused(line: tuple[str, ...]) -> None:
    done = launch(*line)
    assert done.returncode == 2
    assert "must be on PATH" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.root
def test_as_process_1_of_a_container_a_program_still_ends_by_sigterm() -> None:
    """Process 1 would ignore the signal: sleep has no handler."""
    inside = "import sys; from workload.__main__ import main; sys.exit(main(['launch', '--', 'sleep', '60']))"
    line = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", inside]
    with subprocess.Popen(line) as outer:
        deadline = time.monotonic() + HANG_S
        while not (inner := _grandchild(outer.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert inner, "sleep runs below process 1"
        os.kill(_children(outer.pid)[0], signal.SIGTERM)
        assert outer.wait(HANG_S) == 143


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _grandchild(pid: int) -> int:
    grandchildren = [inner for child in _children(pid) for inner in _children(child)]
    return grandchildren[0] if grandchildren else 0
