"""The end of training that takes too long, by a JobSet or a custom job."""

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from infra.layers.pipeline import handoff
from rehearsal.cloud.services.workflows.engine import HttpRequest
from tests.infra.layers.pipeline.test_pipeline_layer import JOBSET, VERTEX, settings
from tests.infra.layers.pipeline.test_pipeline_workflow import BUCKET, SETTINGS, Google, failed, run

SOON = {"pipeline__trainHours": 1}


@dataclass
class Cluster(Google):
    """With a cluster, where a JobSet runs on and on."""

    jobsets: list[str] = field(default_factory=list)

    def _answer(self, request: HttpRequest, body: Any) -> tuple[int, Any]:
        if urlsplit(request.url).hostname != "cluster.example":
            return super()._answer(request, body)
        if request.method == "POST":
            self.jobsets.append(body["metadata"]["name"])
        elif request.method == "DELETE":
            self.jobsets.remove(request.url.rpartition("/")[2])
        return 200, {}


def test_a_jobset_that_takes_too_long_is_deleted() -> None:
    google = Cluster(train=False, given=SOON)
    known = settings(JOBSET, **SOON)
    google.objects[f"{BUCKET}/{SETTINGS}"]["handoff"] = handoff.handoff(known, "", "cluster.example")
    record = failed(google)
    assert (record["outcome"], google.jobsets) == ("train_hours", [])
    assert "was ended" in record["why"]


def test_a_jobset_that_is_done_is_left_to_the_queue() -> None:
    google = Cluster(train=False)
    known = settings(JOBSET)
    given = handoff.handoff(known, "", "cluster.example")
    assert given
    google.objects[f"{BUCKET}/{SETTINGS}"]["handoff"] = {**given, "watch": {**given["watch"], "done": [""]}}
    assert run(google)["outcome"] == "trained"
    assert google.jobsets == ["tokens-r17"]


def test_a_custom_job_that_takes_too_long_is_named_as_one_that_ends_itself() -> None:
    google = Google(heartbeats=[{"state": "running"}], given=SOON)
    known = settings(VERTEX, **SOON)
    given = handoff.handoff(known)
    assert given
    google.objects[f"{BUCKET}/{SETTINGS}"]["handoff"]["ends"] = given["ends"]
    assert "and Vertex AI ends it itself" in failed(google)["why"]


def test_a_claim_whose_answer_was_lost_is_this_executions() -> None:
    google = Google()
    google.objects[f"{BUCKET}/pipeline/r17/run.json"] = {"execution": "e-1"}
    assert run(google)["outcome"] == "trained"
