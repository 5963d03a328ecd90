"""Record of a run: `pipeline/RUN/run.json` in the controllers' bucket, which hosts and pods can't write.

It is all that is known of a run, and is written only on the generation that was read. A field's name is its
name in JSON.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from infra.layers.pipeline import paths
from settings_schema import foreign
from settings_schema.foreign import ForeignError

VERSION = 1
RUN = "r[0-9]{1,20}"
FOLDER = rf"{paths.TOKENS}/{RUN}/[A-Za-z0-9._-]{{1,80}}"
"""Folder of complete shards: hosts may write there, and it becomes a word of the training command."""
MOST_OBJECTS = 1_000_000
"""Objects of a submission: to list them takes minutes of a call."""
RUNNING, CANCELLED = "running", "cancelled"
GOOD = ("trained", "shards")
_TIME = "[0-9TZ:.+-]{1,40}"


class Stage(StrEnum):
    """Stage of a run."""

    PREPROCESS = "preprocess"
    CHECK = "check"
    TRAIN = "train"


class NewerError(ForeignError):
    """The record is of a newer version of the program."""


@dataclass(frozen=True)
class Tokens:
    """Counts of the shards that have been checked, of which the last ones of a run are its shards.

    Attributes:
        manifest: sha256 of the manifest.
        inputs: sha256 of the raw text; empty: unknown.
    """

    manifest: str = ""
    inputs: str = ""
    documents: int = 0
    tokens: int = 0
    shards: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
        run: its name, `r` and the generation of the submission.
        raw: URL of the submitted folder.
        began: time of the submission's claim, as RFC 3339.
        began_s: the same in seconds since 1970.
        code: sha256 of the batch's code.
        most_usd: maximum price; None: unknown.
        retry: number of retries, and suffix of the batch's name.
        restart: number of trainings before this one, and suffix of its name.
        cancel: who requested the cancellation; empty: nobody.
        answered: id of the person's request that was applied last.
        objects: number of objects of text; None: not measured.
        bytes: of the text.
        batch: id of the batch; empty: not created.
        spark_usd: price of the batch, by Google's figures.
        folder: of the complete shards, in the checkpoint bucket.
        checked: number of shards whose sha256 has been compared.
        tokens: counts of these shards.
        train: `pipeline:train` by which training was started.
        training: what trains, in words; empty: not started.
        ended_by: command that ends it early.
        training_began_s: time of its start.
        failing_s: time of the first of the failures since the last success; 0: none.
        why: reason of the outcome, or of the last failure.
        next: next command.
    """

    run: str
    raw: str
    began: str
    began_s: float
    code: str = ""
    most_usd: float | None = None
    stage: Stage = Stage.PREPROCESS
    outcome: str = RUNNING
    retry: int = 0
    restart: int = 0
    cancel: str = ""
    answered: int = 0
    objects: int | None = None
    bytes: int | None = None
    predicted_usd: float | None = None
    batch: str = ""
    spark_usd: float | None = None
    folder: str = ""
    checked: int = 0
    tokens: Tokens | None = None
    train: str = ""
    training: str = ""
    ended_by: str = ""
    training_began_s: float = 0.0
    training_usd: float | None = None
    actual_usd: float | None = None
    failing_s: float = 0.0
    why: str = ""
    next: str = ""
    ended: str = ""

    @property
    def running(self) -> bool:
        """True until it has an outcome."""
        return self.outcome == RUNNING

    @property
    def training_name(self) -> str:
        """Name of its slice or job: that of an earlier training isn't used again."""
        return f"{self.run}-{self.restart}" if self.restart else self.run

    def to_json(self) -> dict[str, Any]:
        """Return the stored form, without unset values."""
        values = {key: value for key, value in asdict(self).items() if value not in (None, "")}
        return {"version": VERSION, **values}

    def retried(self) -> "Run":
        """Return the run as it is retried: complete stages stay, training that ended gets another name."""
        again = self.outcome in ("training_failed", "train_hours") or (
            bool(self.training) and self.outcome == CANCELLED
        )
        kept = replace(
            self, outcome=RUNNING, retry=self.retry + 1, restart=self.restart + again, cancel="", why="",
            next="", ended="", failing_s=0.0, training="", ended_by="", actual_usd=None, training_usd=None,
        )  # fmt: skip
        if self.stage is Stage.TRAIN:
            return kept
        return replace(
            kept, stage=Stage.PREPROCESS, objects=None, bytes=None, predicted_usd=None, batch="", folder="",
            checked=0, tokens=None,
        )  # fmt: skip


_COUNTS = ("retry", "restart", "checked", "answered")
_MAY_LACK = ("objects", "bytes")
_NUMBERS = ("predicted_usd", "spark_usd", "training_usd", "actual_usd", "most_usd")
_TIMES_S = ("began_s", "training_began_s", "failing_s")
_TEXTS = {
    "run": RUN, "outcome": "[a-z_]{1,40}", "stage": "|".join(Stage), "began": _TIME, "raw": "gs://(?s:.*)",
    "ended": _TIME, "batch": "[a-z0-9-]{1,80}", "folder": FOLDER, "cancel": "", "train": "[a-z0-9 -]{1,80}",
    "training": "", "ended_by": "", "code": "[0-9a-f]{64}", "why": "", "next": "",
}  # fmt: skip
_REQUIRED = ("run", "outcome", "stage", "began", "raw")


def parse(run: str, content: bytes | str) -> Run:
    """Return the record of a run.

    Raises:
        NewerError: it is of a newer version.
        ForeignError: it isn't a record of this run.
    """
    parsed = foreign.parse(content)
    if (version := foreign.count(parsed, "version")) > VERSION:
        raise NewerError(f"is of version {version}; this program knows {VERSION}")
    known: dict[str, Any] = {key: foreign.text(parsed, key, pattern) for key, pattern in _TEXTS.items()}
    if missing := [key for key in _REQUIRED if not known[key]]:
        raise ForeignError(f"lacks {', '.join(missing)}")
    if known["run"] != run:
        raise ForeignError(f"is of {known['run']}")
    known["stage"] = Stage(known["stage"])
    known |= {key: foreign.count(parsed, key) for key in _COUNTS}
    known |= {key: foreign.count(parsed, key) for key in _MAY_LACK if parsed.get(key) is not None}
    known |= {key: foreign.number(parsed, key) for key in _NUMBERS}
    known |= {key: foreign.number(parsed, key) or 0.0 for key in _TIMES_S}
    if tokens := foreign.group(parsed, "tokens"):
        known["tokens"] = _tokens(tokens)
    return Run(**known)


def explained(error: ForeignError, url: str) -> str:
    """Return why an object isn't read, with the fix."""
    fix = f"repair it, or gcloud storage rm {url}"
    if isinstance(error, NewerError):
        fix = "use the program that wrote it; for the function: tpu up ENV pipeline, from there"
    return f"{error}\n    fix: {fix}"


def _tokens(parsed: Mapping[str, Any]) -> Tokens:
    texts = {key: foreign.text(parsed, key, "[0-9a-f]{64}") for key in ("manifest", "inputs")}
    counts = {key: foreign.count(parsed, key) for key in ("documents", "tokens", "shards", "bytes")}
    return Tokens(texts["manifest"], texts["inputs"], **counts)


def text(run: Run) -> str:
    """Return the stored text of a run."""
    return json.dumps(run.to_json(), indent=1)
