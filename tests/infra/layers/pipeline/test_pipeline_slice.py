"""Training by a slice that stands already: the workflow's part, executed against a slice of a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pytest

from infra.errors import SettingsError
from infra.layers.pipeline import access, handoff, places, price
from infra.layers.pipeline.places import RUN, TRAINING
from infra.settings import commands
from tests.infra.layers.pipeline import test_pipeline_layer as layer
from tests.infra.layers.pipeline.test_pipeline_layer import settings
from tests.infra.layers.pipeline.test_pipeline_workflow import BUCKET, EVENT, RAW, Google, failed, run

NAME, ZONE = "idle", "us-east5-b"
HANDED, ENDED = f"{BUCKET}/handoff/{NAME}/run.json", f"{BUCKET}/handoff/{NAME}/ended/"
SLICE = {key.replace(":", "__"): value for key, value in layer.SLICE.items()}
IDLE: dict[str, Any] = layer.SLICE["tpu:slices"][0]


@dataclass
class Standing(Google):
    """With a slice: `ends` says how what it is handed ends, by id, and after how many pauses of the workflow.

    `handed`: the generation of what it has now; `took`: ids of all that it had, in order.
    """

    train: bool = False
    given: dict[str, Any] = field(default_factory=lambda: dict(SLICE))
    ends: dict[str, tuple[str, int]] = field(default_factory=lambda: {"r17": ("done", 2)})
    handed: dict[str, int] = field(default_factory=dict)
    took: list[str] = field(default_factory=list)
    waited_for: set[str] = field(default_factory=set)
    lost: int = 0
    last: int = 100

    def hand(self, id_: Any) -> int:
        self.last += 1
        self.objects[HANDED], self.handed[HANDED] = id_, self.last
        return self.last

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        if other := self.record.get("waits_for"):
            self.waited_for.add(other)
        found = self.objects.get(HANDED)
        id_ = found.get("id") if isinstance(found, dict) else None
        if id_ in self.ends and f"{ENDED}{id_}.json" not in self.objects:
            state, left = self.ends[id_]
            self.ends[id_] = state, left - 1
            if id_ not in self.took:
                self.took.append(id_)
            if left <= 1:
                why = "exit status 2" if state == "failed" else ""
                self.objects[f"{ENDED}{id_}.json"] = {"id": id_, "state": state, "why": why}

    def _storage(self, method: str, path: str, query: Mapping[str, str], body: Any) -> tuple[int, Any]:
        name = query.get("name") or unquote(path.partition("/o/")[2])
        if name != HANDED.partition("/")[2]:
            return super()._storage(method, path, query, body)
        generation = self.handed.get(HANDED, 0)
        if "ifGenerationMatch" in query and int(query["ifGenerationMatch"]) != generation:
            return 412, {"error": {"message": "conditionNotMet"}}
        if method == "POST":
            assert "ifGenerationMatch" in query, "two runs would overwrite one another"
            assert self.record["slice"] == NAME, "who cancels it meanwhile knows where"
            made = self.hand(body)
            if self.lost:
                self.lost -= 1
                return 503, {"error": {"message": "the answer was lost"}}
            return 200, {"generation": str(made)}
        if not generation:
            return 404, {"error": {"message": "No such object"}}
        if method == "DELETE":
            assert "ifGenerationMatch" in query, "it may be another run's"
            del self.objects[HANDED], self.handed[HANDED]
            return 200, {}
        if query.get("alt") == "media":
            assert query["generation"] == str(generation)
            return 200, self.objects[HANDED]
        return 200, {"generation": str(generation)}


def test_a_run_is_handed_to_the_slice_and_taken_back_when_it_has_ended() -> None:
    google = Standing()
    assert run(google)["outcome"] == "trained"
    assert google.took == ["r17"]
    assert HANDED not in google.objects
    assert google.nodes == set(), "no slice is made"
    record = google.record
    assert record["slice"] == NAME
    assert record["training"] == f"r17 on slice {NAME} (v6e-16, {ZONE}), which is paid for anyway"
    assert (record["training_usd"], record["actual_usd"]) == (0, record["spark_usd"])


def test_what_is_handed_over_is_a_training_that_hosts_can_start() -> None:
    google = Standing(ends={})
    google.refusals = {"ended%2Fr17.json": [(403, "no")]}
    failed(google)
    handed = google.objects[HANDED]
    assert handed["id"] == "r17"
    found = commands.training(handed["run"])
    assert found is not None
    assert found.name == "r17"
    assert found.changes == ("data.path=/mnt/checkpoints/tokens/r17/0123456789abcdef",)


def test_a_lost_answer_is_no_other_run() -> None:
    google = Standing(lost=1)
    assert run(google)["outcome"] == "trained"
    assert (google.lost, google.took) == (0, ["r17"])
    assert "waits_for" not in google.record


def test_a_slice_that_is_busy_is_waited_for() -> None:
    google = Standing(ends={"r9": ("done", 5), "r17": ("done", 2)})
    google.hand({"id": "r9", "run": "train tiny.toml"})
    assert run(google)["outcome"] == "trained"
    assert google.took == ["r9", "r17"], "one after the other"
    assert google.waited_for == {"r9"}
    assert "waits_for" not in google.record


def test_a_slice_that_stays_busy_is_an_outcome() -> None:
    google = Standing(ends={})
    generation = google.hand({"id": "r9", "run": "train tiny.toml"})
    record = failed(google)
    assert (record["stage"], record["outcome"]) == ("train", "busy")
    assert record["why"] == f"slice {NAME} still trains r9 after 24 h"
    assert record["next"] == "tpu pipeline retry dev r17"
    assert google.handed == {HANDED: generation}, "what the other has stays"


@pytest.mark.parametrize("left", [{"id": "r9", "run": "train tiny.toml"}, {"run": "x"}, ["r9"], "r9"])
def test_what_has_ended_and_what_is_no_hand_off_is_replaced(left: Any) -> None:
    google = Standing()
    google.hand(left)
    google.objects[f"{ENDED}r9.json"] = {"state": "done"}
    assert run(google)["outcome"] == "trained"
    assert google.took == ["r17"]


def test_training_that_fails_for_good_is_an_outcome_and_a_retry_has_another_id() -> None:
    google = Standing(ends={"r17": ("failed", 1), "r17-1": ("done", 1)})
    record = failed(google)
    assert (record["outcome"], record["why"]) == ("training_failed", "the job says failed: exit status 2")
    assert record["next"] == "tpu logs dev idle"
    assert run(google, {**EVENT, "retry": 1, "restart": 1})["outcome"] == "trained"
    assert google.took == ["r17", "r17-1"]
    assert google.record["training"].startswith("r17-1 on slice")


def test_a_retry_finds_what_it_had_handed_over() -> None:
    google = Standing(refusals={f"{BUCKET}/o/handoff%2F{NAME}%2Fended%2Fr17.json": [(503, "down")] * 6})
    assert failed(google)["outcome"] == "unavailable"
    generation = google.handed[HANDED]
    assert run(google, {**EVENT, "retry": 1})["outcome"] == "trained"
    assert google.last == generation, "it is handed over once"


def test_training_that_takes_too_long_is_taken_back() -> None:
    google = Standing(ends={})
    assert failed(google)["outcome"] == "train_hours"
    assert google.passed_s >= 24 * 3600
    assert HANDED not in google.objects


def test_what_replaced_a_hand_off_is_never_taken_back() -> None:
    google = Standing(ends={"r17": ("done", 1)})

    async def sleep(seconds: float) -> None:
        await Standing.sleep(google, seconds)
        if f"{ENDED}r17.json" in google.objects:
            google.hand({"id": "r18", "run": "train tiny.toml"})  # by another run, for which r17 has ended

    google.sleep = sleep  # type: ignore[method-assign]
    assert run(google)["outcome"] == "trained"
    assert google.objects[HANDED]["id"] == "r18"


@pytest.mark.parametrize("part", ["POST https://storage.googleapis.com/upload", "GET"])
def test_a_refusal_names_the_grant_of_the_folder(part: str) -> None:
    permission = f"storage.objects.{'create' if 'POST' in part else 'get'}"
    message = (
        f"tpu-pipeline-run@my-project.iam.gserviceaccount.com does not have {permission} access to the "
        f"Google Cloud Storage object. Permission '{permission}' denied on resource (or it may not exist)."
    )
    google = Standing()

    async def send(request: Any) -> Any:
        if request.method == part.partition(" ")[0] and "handoff%2F" in request.url:
            return google._reply(403, {"error": {"code": 403, "message": message}})
        return await Standing.send(google, request)

    google.send = send  # type: ignore[method-assign]
    record = failed(google)
    assert record["outcome"] == "permission"
    role = f"roles/storage.objectUser on the bucket {BUCKET}, below handoff/, for tpu-pipeline-run"
    assert record["why"].endswith(f"; it needs {role}")


def test_the_hand_off_names_the_run_and_is_created_once() -> None:
    found = handoff.handoff(settings(**SLICE))
    assert found is not None
    assert found["claim"]["body"]["id"] == TRAINING
    assert RUN in found["claim"]["body"]["run"]
    assert places.FOLDER in found["claim"]["body"]["run"]
    assert places.GENERATION in json.dumps(found["stop"])
    assert found["start"] == []


def test_a_slice_that_stands_costs_a_run_nothing_more() -> None:
    known = settings(**SLICE)
    assert price.training_hour_usd(known) == 0.0
    assert price.most_usd(known) == price.most_usd(settings())


def test_the_account_gets_objects_below_the_hand_offs_and_no_slice() -> None:
    more = {*access.grants(settings(**SLICE))} - {*access.grants(settings())}
    assert [(one.who, one.role, one.folder) for one in more] == [
        ("tpu-pipeline-run", "roles/storage.objectUser", "handoff")
    ]
    assert RAW not in next(iter(more)).only


@pytest.mark.parametrize(("change", "message"), [
    ({"pipeline__trainSliceName": "other"},
     f'trainSliceName: found "other". Rule: one of tpu:slices without a count: {NAME}'),
    ({"pipeline__trainSliceName": None}, "pipeline:trainSliceName: found nothing"),
    ({"tpu__slices": [{**IDLE, "run": "train tiny.toml"}]},
     f'tpu:slices ({NAME}) run: found "train tiny.toml". Rule: a slice that is handed runs has run: standby'),
    ({"tpu__slices": [{**IDLE, "count": 2}]}, "without a count: none"),
    ({"tpu__slices": [{**IDLE, "zones": ["us-central1-b"]}], "tpu__zones": [ZONE],
      "storage__allowCrossRegion": True}, "shards and checkpoints are in us-east5"),
    ({"pipeline__trainRun": "bash -c true"}, "Rule: a slice is handed a `train …`"),
    ({"pipeline__trainRun": "train tiny.toml --nam x"}, "--nam isn't an option of train"),
])  # fmt: skip
def test_what_cannot_be_handed_over_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as found:
        settings(**{**SLICE, **change})
    assert message in str(found.value)
