"""Random deaths, lost answers, refusals and requests of people: nothing is doubled, and everything ends."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from infra.google.client import RequestError
from pipeline.store import ConflictError
from tests.pipeline.test_training import JOBSET, VERTEX, ends, names
from tests.pipeline.world import DiesError, Fault, Pipeline, given

SEQUENCES, MOVES = 40, 25


class Chaos:
    """Sequence of random moves, by its seed.

    Attributes:
        faults: number of faults that were met, by kind.
    """

    def __init__(self, seed: int):
        self._random = random.Random(seed)
        kind = self._random.choice([None, JOBSET, VERTEX])
        self.pipeline = Pipeline(given(kind))
        self.google = self.pipeline.google
        self.runs = [self.google.submit(f"{name}/") for name in "ab"]
        self.faults = Counter[str]()

    def play(self) -> None:
        """Make random moves, then let everything work until all has ended."""
        for _ in range(MOVES):
            self._move()
        for _ in range(60):
            self.google.faults = []
            for name, batch in self.google.batches.items():
                if batch["state"] in ("PENDING", "RUNNING"):
                    batch["state"] = "SUCCEEDED"
                    self.google.shards(name.split("-")[2])
            for number in range(len(self.google.jobs)):
                job = self.google.jobs[number]
                job["state"] = job["state"].replace("RUNNING", "SUCCEEDED")
            for jobset in self.google.jobsets.values():
                jobset["status"] = jobset["status"] or {"terminalState": "Completed"}
            self.pipeline.sweep()
            if all(self.pipeline.record(run)["outcome"] != "running" for run in self.runs):
                return

    def _move(self) -> None:
        self.google.faults = []
        choice = self._random.random()
        if choice < 0.15:
            self._request()
        elif choice < 0.3 and self.google.batches:
            self.google.move(self._random.choice(["RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"]))
        elif choice < 0.4:
            ends(self.pipeline, fine=self._random.random() < 0.5)
        status = self._random.choice([0, 0, 503, 429, 403])
        fault = Fault(
            self._random.choice(["", "POST", "GET", "DELETE", "dataproc", "pipeline/r", "cluster|platform"]),
            status, "Permission 'x.y.z' denied" if status == 403 else "try again",
            times=self._random.randint(1, 4), done=status != 403 and self._random.random() < 0.5,
            dies=self._random.random() < 0.5,
        )  # fmt: skip
        self.google.faults = [fault] if self._random.random() < 0.7 else []
        try:
            self.pipeline.sweep(fine=False, minutes=self._random.choice([1, 1, 5]))
        except DiesError:
            self.pipeline.instance()
        except RequestError:
            pass
        self.faults["death" if fault.dies else str(status)] += fault.met

    def _request(self) -> None:
        try:
            action = self._random.choice(["cancel", "retry", "retry"])
            self.pipeline.sweeps.store.request(self._random.choice(self.runs), action, "ann")
        except ConflictError:
            pass


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.prove) for part in range(1, 8))])
def test_nothing_is_doubled_and_everything_ends(part: int) -> None:
    faults, outcomes = Counter[str](), Counter[str]()
    for seed in range(part * SEQUENCES, (part + 1) * SEQUENCES):
        chaos = Chaos(seed)
        chaos.play()
        faults += chaos.faults
        trained = Counter(names(chaos.pipeline))
        assert max(trained.values(), default=1) == 1, f"seed {seed}: two trainings of one name"
        for run in chaos.runs:
            record = chaos.pipeline.record(run)
            outcomes[record["outcome"]] += 1
            assert record["outcome"] != "running", f"seed {seed}: {record}"
            batches = [name for name in chaos.google.batches if run in name]
            assert len(batches) <= record["retry"] + 1, f"seed {seed}: {batches}"
            names_of_run = [name for name in trained if run in name]
            assert len(names_of_run) <= record["restart"] + 1, f"seed {seed}: {names_of_run}"
            if record["outcome"] == "cancelled":
                living = [job for job in chaos.google.jobs if job["state"] == "JOB_STATE_RUNNING"]
                assert not living, f"seed {seed}"
    assert min(faults[kind] for kind in ("death", "0", "503", "429", "403")) > 0, "each kind was met"
    assert len(outcomes) > 4, outcomes
