"""Every grant of the pipeline is needed: without it a run, an event, an update or a command fails with a
sentence that names it, and with all of them the same run ends well.

One lab (tests/proofs/pipeline_lab.py) with three sets of settings: Spark by the small role and a custom job
of Vertex AI, then Spark by the worker's role and a slice of the fleet. A run
that was refused is retried without the next grant: `tpu pipeline retry` continues from what is there.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from benchmarks.machine import described
from infra.layers.pipeline import access, paths
from infra.layers.pipeline.access import Grant
from infra.layers.pipeline.settings import SMALL_ROLE, WORKER
from tests.proofs import opened
from tests.proofs.pipeline_lab import (
    BUCKET,
    CONTROLLERS,
    PLACE,
    PROGRAM,
    RAW,
    REGION,
    RUNNER,
    VIEWER,
    PipelineLab,
    named,
)
from tools.pipeline_grants import RESULTS, results

SMALL = {
    "pipeline:existingRawBucket": True,
    "pipeline:sparkRole": SMALL_ROLE,
    "pipeline:train": "vertex",
    "pipeline:trainImage": f"us-docker.pkg.dev/p/r/i@sha256:{'0' * 64}",
    "pipeline:trainSlice": "v6e-1",
}
CASES = {
    "tpu.nodes.update": "a node whose labels or bundle aren't the record's",
    "tpu.operations.get": "a creation that fails after its answer, as without chips",
}
"""Permissions of cases that don't come up here, and do in the fleet's matrix."""
DELIVER = "eventarc.events.deliver"
Report = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """Outcome without a grant; `sentence` names it, `shown`: by which command."""

    grant: str
    outcome: str
    shown: str
    sentence: str
    took_s: float
    on: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())


@dataclass
class Proof:
    """The rows so far; each is printed as it is found."""

    lab: PipelineLab
    report: Report
    rows: list[Row] = field(default_factory=list)
    run: str = ""

    def grant(self, who: str, role: str, what: str = "", folder: str = "") -> Grant:
        """The one of an account, by the last part of its id or in words, with this role or one of our own."""
        name = f"{paths.name(self.lab.settings)}-{who}" if who in paths.ACCOUNTS else who
        grants = [
            grant
            for grant in self.lab.grants()
            if grant.who == name and (grant.role or grant.title).rpartition("/")[2] == role
            and grant.what.startswith(what) and grant.folder == folder
        ]  # fmt: skip
        exact = [item for item in grants if item.what == what] or grants
        assert len(exact) == 1, f"{who} {role} {what}: {grants}"
        return exact[0]

    @contextmanager
    def away(self, grant: Grant, outcome: str, shown: str) -> Iterator[list[str]]:
        """It is away; what was printed is put into the list, and must name it."""
        begun, printed = time.monotonic(), list[str]()
        with self.lab.without(grant):
            yield printed
        text = "\n".join(printed)
        (sentence,) = [line.strip() for line in text.splitlines() if self.names(line, grant)][:1] or [""]
        assert sentence, f"nothing names {grant.named}:\n{text}"
        whole = re.search(r"(?ms)^why +(.*?)^next +", text)  # a run's page has all of it, on several lines
        sentence = " ".join((whole[1] if whole else re.sub(r"^(error|fix): +", "", sentence)).split())
        assert self.names(sentence, grant), sentence
        sentence = re.sub(r"r\d{16}", "RUN", sentence).replace(f"{BUCKET}", "BUCKET").replace(RAW, "RAW")
        row = Row(named(grant), outcome, shown, sentence, round(time.monotonic() - begun, 1))
        self.rows.append(row)
        self.report(f"without {row.grant}: {row.outcome}; {row.sentence}")

    @staticmethod
    def names(line: str, grant: Grant) -> bool:
        """Return whether a line names the role, its resource and its account."""
        role = grant.role or grant.role_id
        who = "pipeline:" if grant.of_commands else grant.who
        return role in line and who in line and (grant.on != "bucket" or grant.what in line)

    # Runs

    def again(self, grant: Grant, stage: str) -> dict[str, Any]:
        """The run is retried without a grant, and its page says so; the record."""
        with self.away(grant, f"permission, at {stage}", "tpu pipeline status ENV RUN") as printed:
            record = self.retried()
            printed.append(self.lab.tpu("pipeline", "status", "dev", self.run))
            assert (record["outcome"], record["stage"]) == ("permission", stage), record
            assert record["next"].startswith("tpu pipeline retry"), record
            assert "outcome  permission" in printed[0], printed[0]
        return record

    def retried(self) -> dict[str, Any]:
        """The run is retried, and ends; the record."""
        retry = self.lab.record(self.run).get("retry", 0) + 1
        self.lab.tpu("pipeline", "retry", "dev", self.run, "--yes")
        return self.lab.ended(self.run, retry)

    def training(self) -> None:
        """The run is retried, and trains."""
        retry = self.lab.record(self.run).get("retry", 0) + 1
        self.lab.tpu("pipeline", "retry", "dev", self.run, "--yes")
        self.lab.swept_until(self.run, lambda record: "training" in record, retry)

    def refused(self, grant: Grant, *words: str, who: str) -> None:
        """A command fails without a grant of its user's, and not with it."""
        places_ = {"dev": "ENV", "--yes": "", self.run: "RUN"}
        shown = [places_.get(word, "FOLDER" if word.startswith("gs:") else word) for word in words]
        shown = ["RUN" if re.fullmatch(r"r\d+", item) else item for item in shown if item]
        with self.away(grant, "the command fails", f"tpu {' '.join(shown)}") as printed:
            printed.append(self.lab.tpu(*words, who=who, fine=False))

    def event(self, grant: Grant, folder: str) -> None:
        """A submission by an object alone starts nothing without a grant, and is seen; then it does."""
        with self.away(grant, "the submission waits", "tpu pipeline status ENV") as printed:
            seen = len(self._deliveries())
            run = self.submitted(folder)
            while not (tried := self._deliveries()[seen:]):
                time.sleep(0.05)
            assert tried[0]["status"] == 403, tried
            if grant.on == "function":
                assert self.lab.sweep()["status"] == {"code": 7}, "the sweep can't either"
            printed.append(self.lab.tpu("pipeline", "status", "dev"))
            assert re.search(rf"{run} .* waiting ", printed[0]), printed[0]
            assert not self.lab.record(run)
        assert self.lab.ended(run)["outcome"] == "empty", "with the grant it begins"

    def submitted(self, folder: str) -> str:
        """An object `_SUBMIT` alone, by a program; its run."""
        self.lab.upload(f"{folder}%2F_SUBMIT", b"", RAW)
        submitted = self.lab.answer("GET", f"storage.googleapis.com/storage/v1/b/{RAW}/o/{folder}%2F_SUBMIT")
        return f"r{submitted['generation']}"

    def _deliveries(self) -> list[dict[str, Any]]:
        every = self.lab.cloud.requests.since(0)["requests"]
        return [item for item in every if item["method_id"] == DELIVER]


def measure(report: Report, parts: Sequence[str] = ()) -> dict[str, Any]:
    """A row for each grant of each setting, which goes to RESULTS as soon as its part is over.

    `parts`: only these of PARTS, beside the first; other rows stay as they are.
    """
    begun = time.monotonic()
    chosen = [part for part in PARTS if not parts or part in {"first", *parts}]
    with opened(PipelineLab, SMALL) as lab:
        lab.bucket(RAW)  # somebody else's
        lab.bring_up()
        report(f"the pipeline is up after {time.monotonic() - begun:.0f} s")
        proof = Proof(lab, report)
        unused: set[str] = set()
        for name in chosen:
            PARTS[name](proof)
            _store(proof.rows, time.monotonic() - begun, alone=len(chosen) == len(PARTS))
            report(f"{name}: {time.monotonic() - begun:.0f} s")
            if name in ("vertex", "builds") and len(chosen) == len(PARTS):  # the last of its settings
                unused |= _unused(lab)
        assert not unused, unused
    return {"rows": len(proof.rows), "seconds": round(time.monotonic() - begun, 1)}


def _store(rows: Sequence[Row], took_s: float, *, alone: bool) -> None:
    """Rows take the place of those that are stored of the same grants, or of all; `took_s`: of this call."""
    stored = [] if alone or not RESULTS.exists() else results()["rows"]
    actual = {item["grant"]: item for item in stored} | {row.grant: vars(row) for row in rows}
    result = {"rows": list(actual.values()), "on": described(("pulumi-gcp",)), "took_s": round(took_s)}
    RESULTS.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def _events(proof: Proof) -> None:
    """Take away the grants of events and sweeps."""
    proof.event(proof.grant("trigger", "run.invoker"), "e1")
    proof.event(proof.grant("trigger", "eventarc.eventReceiver"), "e2")
    proof.event(proof.grant("Eventarc's service agent", "eventarc.serviceAgent"), "e3")
    proof.event(proof.grant("Cloud Storage's service agent", "pubsub.publisher"), "e4")


def _first(proof: Proof) -> None:
    """A run that can't even begin its record, and what is asked for before Spark."""
    lab = proof.lab
    lab.text("corpus")
    records = proof.grant("run", "storage.objectUser", CONTROLLERS, paths.RECORDS)
    with proof.away(records, "the submission waits", "tpu pipeline status ENV") as printed:
        proof.run = proof.submitted("corpus")
        lab.sweep()
        printed.append(lab.tpu("pipeline", "status", "dev"))
        assert re.search(rf"{proof.run} .* waiting ", printed[0]), printed[0]
        assert not lab.record(proof.run)
    raw = proof.grant("run", "storage.objectViewer", RAW)
    with proof.away(raw, "permission, at preprocess", "tpu pipeline status ENV RUN") as printed:
        assert lab.ended(proof.run)["outcome"] == "permission"
        printed.append(lab.tpu("pipeline", "status", "dev", proof.run))
    assert not lab.answer("GET", f"dataproc.googleapis.com/v1/{PLACE}/batches").get("batches")
    proof.again(proof.grant("run", "batches"), "preprocess")
    proof.again(
        proof.grant("run", "iam.serviceAccountUser", f"{paths.name(lab.settings)}-spark"), "preprocess"
    )


def _spark(proof: Proof) -> None:
    """Take away the grants of batches, under the small role."""
    lab = proof.lab
    proof.again(proof.grant("spark", "dataproc.serverlessNode"), "preprocess")
    proof.again(proof.grant("spark", "storage.objectUser", f"{RAW}-scratch"), "preprocess")
    proof.again(proof.grant("spark", "storage.objectViewer", RAW), "preprocess")
    proof.again(proof.grant("spark", "storage.objectUser", BUCKET, paths.TOKENS), "preprocess")
    lines = lab.tpu("pipeline", "logs", "dev", proof.run)
    assert "Spark" in lines, f"with the grant it is logged what it printed: {lines}"
    assert "Spark" in lab.tpu("pipeline", "logs", "dev", proof.run, who=VIEWER)


def _people(proof: Proof) -> None:
    """Runners and viewers; a second run has a batch that is cancelled."""
    lab = proof.lab
    lab.text("more", 100_000)  # so that its batch runs while three people look at it
    begun = lab.tpu("pipeline", "run", "dev", f"gs://{RAW}/more/", "--yes", "--detach")
    (other,) = re.findall(r"submitted as (r\d+)", begun)
    spark = paths.account(lab.settings, paths.SPARK)
    refused = (spark, "logging.logEntries.create", ())
    with proof.away(
        proof.grant("spark", "logging.logWriter"), "nothing is logged", "tpu pipeline logs ENV RUN"
    ) as printed:
        while not lab.cloud.iam.access[refused]:
            assert lab.record(other).get("outcome", "running") == "running", lab.record(other)
            time.sleep(0.2)
        printed.append(lab.tpu("pipeline", "logs", "dev", other, fine=False))
    runner = access.RUNNER
    everybody = ((access.VIEWER, VIEWER), (paths.VIEW, PROGRAM), (runner, RUNNER))
    lab.swept_until(other, lambda record: "batch" in record)
    for viewer, who in everybody:
        page = ("pipeline", "status", "dev", other)
        proof.refused(proof.grant(viewer, "dataproc.serverlessViewer"), *page, who=who)
        assert re.search("[A-Z]+ since", lab.tpu(*page, who=who))
    requests = proof.grant(runner, "storage.objectUser", CONTROLLERS, paths.REQUESTS)
    proof.refused(requests, "pipeline", "cancel", "dev", other, "--yes", who=RUNNER)
    applied = proof.grant("run", "storage.objectUser", CONTROLLERS, paths.REQUESTS)
    with proof.away(applied, "the request waits", "tpu pipeline status ENV RUN") as printed:
        lab.tpu("pipeline", "cancel", "dev", other, "--yes")
        lab.sweep()
        printed.append(lab.tpu("pipeline", "status", "dev", other))
        assert "cancel" not in lab.record(other), lab.record(other)
    assert lab.ended(other)["outcome"] == "cancelled"
    logs = ("pipeline", "logs", "dev", proof.run)
    records = ("pipeline", "status", "dev")
    code = proof.grant(runner, "storage.objectUser", f"{RAW}-scratch", paths.CODE)
    proof.refused(code, "pipeline", "publish", "dev", who=RUNNER)
    submit = ("pipeline", "run", "dev", f"gs://{RAW}/more/", "--yes")
    proof.refused(proof.grant(runner, "storage.objectUser", RAW), *submit, who=RUNNER)
    for viewer, who in everybody:
        held = proof.grant(viewer, "storage.objectViewer", CONTROLLERS, paths.RECORDS)
        proof.refused(held, *records, who=who)
        proof.refused(proof.grant(viewer, "logging.viewer"), *logs, who=who)
        assert proof.run in lab.tpu(*records, who=who)
        assert "Spark" in lab.tpu(*logs, who=who)


def _vertex(proof: Proof) -> None:
    """The whole of Spark by the small role, the check, and a custom job."""
    lab = proof.lab
    proof.again(proof.grant("run", "storage.objectViewer", BUCKET, paths.TOKENS), "preprocess")
    proof.again(proof.grant("run", "iam.serviceAccountUser", "tpu-training"), "train")
    proof.again(proof.grant("run", "training"), "train")
    proof.training()
    lab.tpu("pipeline", "cancel", "dev", proof.run, "--yes")
    assert lab.ended(proof.run)["outcome"] == "cancelled"


def _fleet(proof: Proof) -> None:
    """The same run continues as a slice of the fleet, with all grants to its end."""
    lab = proof.lab
    _switch(lab)
    proof.again(proof.grant("run", "storage.objectUser", CONTROLLERS, access.STACK), "train")
    with _unseen(proof, proof.grant("run", "slices")):
        proof.training()
        assert not lab.cloud.nodes.all(), "none is made of which nobody knows"
    lab.swept_until(proof.run, lambda _: any(node.state == "READY" for node in lab.cloud.nodes.all()))
    _trained(proof)


@contextmanager
def _unseen(proof: Proof, grant: Grant) -> Iterator[None]:
    """Without a grant the function sees no end of the training, which the run's page tells."""
    lab = proof.lab
    with proof.away(grant, "the run waits", "tpu pipeline status ENV RUN") as printed:
        yield
        record = lab.swept_until(proof.run, lambda record: "it needs" in record.get("why", ""))
        assert record["outcome"] == "running", record
        printed.append(lab.tpu("pipeline", "status", "dev", proof.run))
    lab.swept_until(proof.run, lambda record: "why" not in record)


def _trained(proof: Proof) -> None:
    """The run's slice is made, its host reports the end of the program, and the run ends so."""
    lab = proof.lab

    def ready(_: dict[str, Any]) -> bool:
        return any(node.state == "READY" for node in lab.cloud.nodes.all())

    lab.swept_until(proof.run, ready)
    (node,) = lab.cloud.nodes.all()
    lab.done(node.name.rpartition("/")[2])
    whole = lab.ended(proof.run)
    assert whole["outcome"] == "trained", whole


def _switch(lab: PipelineLab) -> None:
    """To the other settings, if that isn't done yet."""
    if lab.values["pipeline:train"] != "fleet":
        lab.write(
            pipeline__train="fleet",
            pipeline__trainZone=f"{REGION}-b",
            pipeline__trainImage=None,
            pipeline__sparkRole=WORKER,
        )
        lab.up("pipeline")


def _worker(proof: Proof) -> None:
    """The worker's role alone does what the small one does with grants on the buckets."""
    lab = proof.lab
    _switch(lab)
    lab.text("third")
    worker = proof.grant("spark", "dataproc.worker")
    with proof.away(worker, "permission, at preprocess", "tpu pipeline status ENV RUN") as printed:
        printed.append(
            lab.tpu("pipeline", "run", "dev", f"gs://{RAW}/third/", "--yes", "--detach", who=RUNNER)
        )
        (proof.run,) = re.findall(r"submitted as (r\d+)", printed[0])
        assert lab.ended(proof.run)["outcome"] == "permission"
        printed.append(lab.tpu("pipeline", "status", "dev", proof.run))
    with lab.without(proof.grant("spark", "storage.objectViewer", RAW)):  # of another project's bucket
        proof.training()
        _trained(proof)


def _builds(proof: Proof) -> None:
    """The function is built when the layer is brought up with another source."""
    lab = proof.lab
    source = lab.folder / "tree/pipeline/__init__.py"
    for number, (role, what) in enumerate(
        (
            ("logging.logWriter", ""),
            ("storage.objectViewer", ""),
            ("artifactregistry.writer", ""),
        )
    ):
        source.write_text(f"{source.read_text()}# {number}\n")
        with proof.away(
            proof.grant("build", role, what), "the update fails", "tpu up ENV pipeline"
        ) as printed:
            printed.append(lab.up("pipeline", fine=False))
    lab.up("pipeline")


def _unused(lab: PipelineLab) -> set[str]:
    """Permissions that the table says are used, and no request so far has used, without those of CASES."""
    used, unused = lab.used(), set()
    now = lab.settings
    for item in (*access.grants(now), *access.of_people(now)):
        member = lab.member(item).partition(":")[2]
        role = f"{item.full_role(now.project)} {lab.resource(item)}"
        existing = used.get((member, role), set())
        if missing := set(item.permissions) - existing - CASES.keys():
            unused.add(f"{named(item)}: {', '.join(sorted(missing))}")
    return unused


PARTS: dict[str, Callable[[Proof], None]] = {
    "events": _events, "first": _first, "spark": _spark, "people": _people, "vertex": _vertex,
    "fleet": _fleet, "worker": _worker, "builds": _builds,
}  # fmt: skip
