"""Jobs that were being configured when slurmctld was started."""

from collections.abc import Sequence

import pytest

from slurm.cluster import Cluster
from slurm.errors import SlurmError
from slurm.jobs import parse
from slurm.recovered import Recovered

STARTED = "BOOT_TIME               = 2026-11-26T21:19:47\nHASH_VAL                = Match\n"


class Slurm:
    """Slurm's commands, as 22.05.8 prints them."""

    def __init__(self, queue: str, refused: Sequence[str] = ()):
        self.queue, self.refused, self.sent = queue, refused, list[list[str]]()

    def read(self) -> Cluster:
        """Return the reading of a look."""
        pairs = (text.split(" ") for text in self.queue.splitlines())
        lines = (f"{id_}|ada|tpu|CONFIGURING|4|1|0:00|{start}|None|tpu-0-w[0-3]|a\n" for id_, start in pairs)
        return Cluster({}, parse("".join(lines)))

    def __call__(self, line: Sequence[str]) -> str:
        if line[1] == "show":
            return STARTED
        if line[1] == "requeue" and line[2] in self.refused:
            raise SlurmError("scontrol requeue: status 1: Requested operation not supported on non-batch job")
        self.sent.append([*line])
        return ""


@pytest.mark.parametrize(
    ("queue", "jobs"),
    [
        ("", []),
        ("5 2026-11-26T21:19:46\n", ["5"]),
        ("5 2026-11-26T21:19:47\n", []),
        ("5 N/A\n", []),
        ("5_1 2026-11-26T21:19:35\n7 2026-11-26T21:20:00\n", ["5_1"]),
    ],
)
def test_a_job_is_queued_again_if_its_hosts_were_coming_when_slurmctld_started(
    queue: str, jobs: list[str]
) -> None:
    slurm = Slurm(queue)
    Recovered(slurm).requeue(slurm.read())
    expected = [
        line
        for job in jobs
        for line in (["scontrol", "requeue", job], ["scontrol", "update", f"JobId={job}", "StartTime=now"])
    ]
    assert slurm.sent == expected


def test_a_job_of_several_components_is_queued_again_as_a_whole() -> None:
    """Slurm refuses `requeue 5+1`, and that of a component's own number."""
    slurm = Slurm("5+0 2026-11-26T21:19:35\n5+1 2026-11-26T21:19:35\n")
    Recovered(slurm).requeue(slurm.read())
    assert [line[1:] for line in slurm.sent] == [
        ["requeue", "5"], ["update", "JobId=5+0", "StartTime=now"], ["update", "JobId=5+1", "StartTime=now"]
    ]  # fmt: skip


def test_nothing_is_queued_again_of_a_queue_that_wasnt_seen() -> None:
    slurm = Slurm("")
    Recovered(slurm).requeue(Cluster({}, None))
    assert slurm.sent == []


def test_a_job_of_srun_is_named_once_and_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    slurm = Slurm("5 2026-11-26T21:19:35\n6 2026-11-26T21:19:36\n", refused=["5"])
    recovered = Recovered(slurm)
    recovered.requeue(slurm.read())
    slurm.queue = "5 2026-11-26T21:19:35\n"
    recovered.requeue(slurm.read())
    assert slurm.sent[0] == ["scontrol", "requeue", "6"]
    assert [record.message.startswith("job 5: ") for record in caplog.records] == [True]
