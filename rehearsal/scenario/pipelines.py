"""Acts the steps about runs of the pipeline (`pipeline_steps.py`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from google.cloud.storage import Bucket, Client
from google.oauth2.credentials import Credentials

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario import pipeline_steps as steps
from rehearsal.scenario.owner import owner
from rehearsal.scenario.record import Check
from rehearsal.scenario.scene import Scene
from rehearsal.world import person
from rehearsal.world.program import read_settings

Run = dict[str, Any]
_WORDS = ("a", "batch", "of", "text", "becomes", "tokens", "and", "tokens", "become", "a", "checkpoint")
_PAGE = re.MULTILINE | re.DOTALL
_RECORDS, _SUBMIT, _TWICE = "pipeline/", "_SUBMIT", 10
_PIECE_BYTES, _PIECES = 8 << 20, 32  # 256 MiB an object, as compose takes 32 pieces


def submit(scene: Scene, step: steps.Submit) -> None:
    """An object of text, and `_SUBMIT`, by Google's client."""
    bucket = Client(scene.bucket.project).bucket(_setting(scene, "pipeline:rawBucketName"))
    text = step.text or "\n".join(_documents(step.documents))
    if text.strip():
        bucket.blob(f"{step.folder}text.jsonl").upload_from_string(text)
    if step.gib:
        _much(scene, bucket, step)
    if step.marker:
        bucket.blob(f"{step.folder}{_SUBMIT}").upload_from_string("")
    much = f", {step.gib} GiB beside them" if step.gib else ""
    scene.note.text = f"{len(text.splitlines())} documents{much}"


def _much(scene: Scene, bucket: Bucket, step: steps.Submit) -> None:
    """Copies of one object, which take no room here; each of their events would only start an execution."""
    match = {"method": "eventarc.events.deliver", "path": f"objects/{re.escape(step.folder)}part-"}
    identity = scene.control.add_fault({"match": match, "what": {"lost": True}})
    name = f"events of the text in {step.folder} are lost"
    scene.record.faults.append({"id": identity, "name": name, "observed": 0})
    piece = bucket.blob(f"{step.folder}part-piece")
    piece.upload_from_string(bytes(_PIECE_BYTES))
    whole = bucket.blob(f"{step.folder}part-0")
    whole.compose([piece] * _PIECES)
    for number in range(1, step.gib * 2**30 // (_PIECE_BYTES * _PIECES)):
        bucket.copy_blob(whole, bucket, f"{step.folder}part-{number}")


def taken(scene: Scene, step: steps.Taken) -> None:
    """As the project's owner. It fails at once: this cloud runs no SQL."""
    run = _latest(scene, step.folder)
    ours = [one for one in _listed(scene) if run and one["name"].rpartition("/")[2] == run.get("batch")]
    if run is None or not ours:
        raise ScenarioFailed(f"{step.folder} has no batch")
    client, (last,) = owner(scene), ours
    name = f"{last['name'].rpartition('/')[2].partition(run['run'])[0]}{run['run']}-{int(run['retry']) + 1}"
    body = {
        "sparkSqlBatch": {"queryFileUri": f"gs://{_setting(scene, 'pipeline:rawBucketName')}/query.sql"},
        "environmentConfig": last["environmentConfig"],
        "labels": {"team": "another"},
    }
    asked = {"parent": last["name"].partition("/batches/")[0], "batchId": name, "body": body}
    client.send("v1", "dataproc.projects.locations.batches.create", asked)
    scene.note.text = name


def _documents(count: int) -> Iterator[str]:
    """As lines of JSON; none of them twice but the first ten."""
    for number in [*range(count), *range(min(_TWICE, count))]:
        text = " ".join(_WORDS[(number + k) % len(_WORDS)] for k in range(40))
        yield json.dumps({"text": f"{text} number {number}."})


def retry(scene: Scene, step: steps.Retry) -> None:
    """As people type it."""
    run = _latest(scene, step.folder)
    if run is None:
        raise ScenarioFailed(f"{step.folder} has no run that could be started again")
    scene.shell.run(["tpu", "pipeline", "retry", scene.environment, run["run"]])


def ends(scene: Scene, step: steps.Ends) -> None:
    """Wait by the run's record, which is cheap; then hold against what people see."""
    before = _latest(scene, step.folder) if step.retry else None
    if step.retry:
        retry(scene, steps.Retry(step.folder))

    def found() -> Run | None:
        run = _latest(scene, step.folder)
        if run is None or (before and run["retry"] == before["retry"]):
            scene.note.text = "no run yet"
            return None
        scene.note.text = f"{run['run']}: {run['outcome']}, at {run['stage']}: {run.get('why', '')}"
        if step.outcome == "running":
            return run if re.search(step.prints, _page(scene, run), _PAGE) else None
        return run if run["outcome"] != "running" else None

    run = scene.wait_until(f"{step.folder} {step.outcome}", found, step.timeout_s)
    expected = rf"^outcome +{step.outcome}, at {step.at}$.*?{step.prints}"
    page = _page(scene, run)
    if not re.search(expected, page, _PAGE):
        raise ScenarioFailed(f"printed nothing that matches {expected!r}:\n{page}")
    scene.note.text = f"{run['run']}: {run.get('why') or run['outcome']}"
    if step.outcome != "running":
        claim = f"{step.folder} ends as {step.outcome} at {step.at}"
        scene.record.checks.append(Check(claim, str(run.get("why") or "no fault")))


def shard(scene: Scene, step: steps.Shard) -> None:
    """As the project's owner, who alone may delete shards."""
    login = Credentials.from_authorized_user_file(person.credentials("owner"))  # type: ignore[no-untyped-call]
    bucket = Client(scene.bucket.project, credentials=login).bucket(scene.bucket.name)
    if step.back:
        name, content = scene.shards.pop(step.folder)
        bucket.blob(name).upload_from_string(content)
    else:
        run = _latest(scene, step.folder)
        if run is None or not run.get("folder"):
            raise ScenarioFailed(f"{step.folder} has no shards")
        manifest = json.loads(scene.bucket.text(f"{run['folder']}/manifest.json"))
        name = f"{run['folder']}/{manifest['shards'][0]['file']}"
        scene.shards[step.folder] = name, bucket.blob(name).download_as_bytes()
        bucket.blob(name).delete()
    scene.note.text = name


def made(scene: Scene, step: steps.Made) -> None:
    """By the lists of Dataproc, Workflows and the audit log, as the project's owner sees them."""

    def found() -> bool:
        run = _latest(scene, step.folder)
        if run is None:
            return False
        batches, slices = _batches(scene, run), _slices(scene, run)
        executions = _executions(scene, step.folder) if step.executions else []
        scene.note.text = f"batches {', '.join(batches)}; {len(slices)} slices {', '.join(slices)}"
        outcomes = sorted(outcome for _, outcome in executions)
        if step.executions:
            scene.note.text += f"; executions {', '.join(outcomes)}"
        late = not step.late or (executions and executions[-1][0] > str(run.get("ended")))
        # More than there may be stays so: the time-out says what was found.
        return (tuple(batches), len(slices), tuple(outcomes), bool(late)) == (
            step.batches, step.slices, tuple(sorted(step.executions)), True,
        )  # fmt: skip

    scene.wait_until(str(step), found, step.timeout_s, poll_s=1.0)
    scene.record.checks.append(Check(str(step), scene.note.text))


def _batches(scene: Scene, run: Run) -> list[str]:
    """The states of a run's batches, the oldest first."""
    ours = re.compile(rf".*-{run['run']}(-\d+)?")
    batches = [one for one in _listed(scene) if ours.fullmatch(one["name"])]
    return [one["state"] for one in sorted(batches, key=lambda one: str(one["createTime"]))]


def _listed(scene: Scene) -> list[dict[str, Any]]:
    """All batches of the project."""
    client = owner(scene)
    parent = f"projects/{scene.bucket.project}/locations/{client.values['region']}"
    answer = client.send("v1", "dataproc.projects.locations.batches.list", {"parent": parent})
    return list(answer.get("batches", ()))


def _slices(scene: Scene, run: Run) -> list[str]:
    """The slices of a run whose creation was accepted."""
    asked = {
        "resourceNames": [f"projects/{scene.bucket.project}"],
        "filter": 'protoPayload.methodName:"Tpu.CreateNode" AND severity="NOTICE" AND '
        f'protoPayload.resourceName:"/nodes/{run["run"]}"',
        "pageSize": 1000,
    }
    answer = owner(scene).send("v2", "logging.entries.list", {"body": asked})
    names = [one["protoPayload"]["resourceName"].rpartition("/")[2] for one in answer.get("entries", ())]
    return [name for name in names if re.fullmatch(rf"{run['run']}(-\d+)?", name)]


def _executions(scene: Scene, folder: str) -> list[tuple[str, str]]:
    """When each execution for a folder began, and its outcome; the first one first."""
    client = owner(scene)
    place = f"projects/{scene.bucket.project}/locations/{client.values['region']}/workflows/tpu-pipeline"
    asked = {"parent": place, "view": "FULL"}
    answer = client.send("v1", "workflowexecutions.projects.locations.workflows.executions.list", asked)
    found = []
    for one in answer.get("executions", ()):
        argument = json.loads(one.get("argument", "null"))
        if argument.get("data", {}).get("name") == f"{folder}{_SUBMIT}":
            result = json.loads(one["result"]) if "result" in one else {"outcome": one["state"].lower()}
            found.append((str(one["startTime"]), str(result["outcome"])))
    return sorted(found)


def _latest(scene: Scene, folder: str) -> Run | None:
    """The record of the newest run of a folder."""
    raw = f"gs://{_setting(scene, 'pipeline:rawBucketName')}/{folder}"
    names = [name for name in scene.bucket.names(f"{_RECORDS}r") if name.endswith("/run.json")]
    runs = [run for run in map(scene.bucket.json, names) if run and run["raw"] == raw]
    return max(runs, key=lambda run: int(run["run"][1:]), default=None)


def _page(scene: Scene, run: Run) -> str:
    """What `tpu pipeline status` prints of it."""
    return scene.shell.run(["tpu", "pipeline", "status", scene.environment, run["run"]])


def _setting(scene: Scene, name: str) -> str:
    return str(read_settings(scene.program, scene.environment)[name])
