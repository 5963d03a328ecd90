"""The daemon's parts beside a real slurmctld 22.05.8, and what sbatch itself refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.slurm import real

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(name="seen", scope="module")
def _seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Observations of a cluster of six slices of one host, and two of four; see inside.py."""
    printed = real.inside("tests.slurm.inside", str(tmp_path_factory.mktemp("slurm")))
    facts: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return facts


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("memory beyond a host", "--mem=4096000M: a host of tpu has 1400832 MiB for jobs: write less"),
        ("more slices than there are", "-N 9: a job of tpu has 6 slices at most: write -N 6 or less"),
        ("a range of slices", "-N 1-2: a job has a number of slices, not a range: write one number"),
        ("hosts of more slices", "-w names hosts of 2 slices, the job has 1: write -N 2, or hosts of"),
        ("half a host's chips", "--gres=tpu:1: a job has whole slices, with the chips of all of their hosts"),
        ("CRLF", "DOS line breaks"),
        ("no shebang", "line must start with #!"),
        ("a name of two lines", "--job-name: it has a line break"),
        ("another size", "Node count specification invalid"),
    ],
)
def test_a_bad_job_is_refused_with_a_sentence(seen: dict[str, Any], what: str, sentence: str) -> None:
    assert sentence in seen["refused"][what]


def test_a_job_whose_hosts_were_coming_when_slurmctld_started_is_queued_again(seen: dict[str, Any]) -> None:
    assert seen["untouched"] == "CONFIGURING", "the slurmctld that asked for them is still there"
    whole, of_two_components = ["1"], ["1", "1"]
    assert (seen["kept"], seen["restarts"]) == ("CONFIGURING", [whole, of_two_components])


def test_a_job_on_hosts_that_an_older_state_takes_for_powered_down_is_freed(seen: dict[str, Any]) -> None:
    assert seen["job before"] == "RUNNING"
    assert {"ALLOCATED", "POWERED_DOWN"} <= {*seen["node before"]}
    assert seen["actions"] == [["tpu-2-w0", "POWER_DOWN_FORCE"]]
    assert seen["job after"] == "PENDING"


def test_a_host_whose_coming_slurmctld_lost_is_known_once_its_slurmd_starts_again(
    seen: dict[str, Any],
) -> None:
    assert seen["lost"] is True


def test_a_host_has_jobs_of_an_earlier_boot_queued_again(seen: dict[str, Any]) -> None:
    assert seen["earlier"] == [[], True, "PENDING"]


def test_slurmd_runs_jobs_on_a_host_with_cgroup_v2(seen: dict[str, Any]) -> None:
    assert (seen["cgroup mount"], seen["cgroup plugins"]) == ("cgroup2fs", ["cgroup_v1.so"])


def test_a_person_whom_a_host_does_not_know_has_jobs_there_all_the_same(seen: dict[str, Any]) -> None:
    """By the number that slurmctld sends; OS Login gives all machines the same."""
    assert seen["unknown user"].startswith("uid=64100 ")


def test_a_job_leaves_nothing_to_the_next_and_a_host_without_the_epilog_stays_in_use(
    seen: dict[str, Any],
) -> None:
    assert seen["without epilog"] == [1, True, ""], "held by a process, and there"
    assert seen["epilog"] == [0, False, ""]
