"""Steps about runs of the pipeline, each named by its folder of the raw bucket."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from google.cloud.storage import Bucket, Client
from google.oauth2.credentials import Credentials

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario.extracting import record_fault
from rehearsal.scenario.owner import owner
from rehearsal.scenario.record import Check
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.step import step
from rehearsal.scenario.watching import resumed, training
from rehearsal.world import person
from rehearsal.world.checkout import read_settings

Run = dict[str, Any]
_WORDS = ("a", "batch", "of", "text", "becomes", "tokens", "and", "tokens", "become", "a", "checkpoint")
_PAGE = re.MULTILINE | re.DOTALL
_RECORDS, _SUBMIT, _TWICE = "pipeline/", "_SUBMIT", 10
_DELIVERY = "eventarc.events.deliver"
_PIECE_BYTES, _PIECES = 8 << 20, 32  # 256 MiB an object, as compose takes 32 pieces


def _check_submit(arguments: Mapping[str, Any]) -> None:
    if not re.fullmatch(r"(?!/)([^/]+/)+", arguments["folder"]):
        raise ValueError(f"folder: {arguments['folder']!r} isn't NAME/")


@step("submit {folder}", check=_check_submit)
def submit(
    scene: Scene, folder: str, documents: int = 100, text: str = "", marker: bool = True, gib: int = 0
) -> None:
    """Write so many documents, ten of them twice, into a folder of the raw bucket, and then its `_SUBMIT`.

    `text` is written instead of documents; with `marker: false` there is no new `_SUBMIT`, and so no new run.
    With `gib` there is so much beside them, in objects that share their bytes and whose events are lost.
    """
    bucket = Client(scene.bucket.project).bucket(_setting(scene, "pipeline:rawBucketName"))
    text = text or "\n".join(_documents(documents))
    if text.strip():
        bucket.blob(f"{folder}text.jsonl").upload_from_string(text)
    if gib:
        _upload_pieces(scene, bucket, folder, gib)
    if marker:
        bucket.blob(f"{folder}{_SUBMIT}").upload_from_string("")
    much = f", {gib} GiB beside them" if gib else ""
    scene.note.text = f"{len(text.splitlines())} documents{much}"


def _upload_pieces(scene: Scene, bucket: Bucket, folder: str, gib: int) -> None:
    """Upload copies of one object; the events of the copies are lost, since each would only be a call."""
    match = {"method": _DELIVERY, "path": f"objects/{re.escape(folder)}part-"}
    identity = scene.control.add_fault({"match": match, "what": {"lost": True}})
    name = f"events of the text in {folder} are lost"
    scene.record.faults.append({"id": identity, "name": name, "observed": 0})
    piece = bucket.blob(f"{folder}part-piece")
    piece.upload_from_string(bytes(_PIECE_BYTES))
    whole = bucket.blob(f"{folder}part-0")
    whole.compose([piece] * _PIECES)
    for number in range(1, gib * 2**30 // (_PIECE_BYTES * _PIECES)):
        bucket.copy_blob(whole, bucket, f"{folder}part-{number}")


@step("the id of the next batch of {folder} is taken")
def taken(scene: Scene, folder: str) -> None:
    """Create a foreign batch with the id that the next retry of a folder's run will choose."""
    run = _latest(scene, folder)
    own = [batch for batch in _listed(scene) if run and batch["name"].rpartition("/")[2] == run.get("batch")]
    if run is None or not own:
        raise ScenarioFailed(f"{folder} has no batch")
    client, (last,) = owner(scene), own
    name = f"{last['name'].rpartition('/')[2].partition(run['run'])[0]}{run['run']}-{int(run['retry']) + 1}"
    body = {
        "sparkSqlBatch": {"queryFileUri": f"gs://{_setting(scene, 'pipeline:rawBucketName')}/query.sql"},
        "environmentConfig": last["environmentConfig"],
        "labels": {"team": "another"},
    }
    request = {"parent": last["name"].partition("/batches/")[0], "batchId": name, "body": body}
    client.send("v1", "dataproc.projects.locations.batches.create", request)
    scene.note.text = name


def _documents(count: int) -> Iterator[str]:
    """As lines of JSON; none of them twice but the first ten."""
    for number in [*range(count), *range(min(_TWICE, count))]:
        text = " ".join(_WORDS[(number + k) % len(_WORDS)] for k in range(40))
        yield json.dumps({"text": f"{text} number {number}."})


@step("tpu pipeline retry: {folder}", account="ml-engineer")
def retry(scene: Scene, folder: str) -> None:
    """`tpu pipeline retry` for the run of a folder; the function reads the request at its next sweep."""
    run = _latest(scene, folder)
    if run is None:
        raise ScenarioFailed(f"{folder} has no run to retry")
    scene.shell.run(["tpu", "pipeline", "retry", scene.environment, run["run"], "--yes"])


@step(
    "wait: {folder} {outcome}, at {at}",
    account="ml-engineer",
    check=lambda ends: re.compile(f".{ends['prints']}"),
)
def ends(
    scene: Scene,
    folder: str,
    outcome: str,
    at: str,
    prints: str = "",
    again: bool = False,
    timeout_s: float = 180.0,
) -> None:
    """Wait until a folder's run has this outcome at this stage; `tpu pipeline status` must print a match.

    `retry` starts it again before. An outcome `running` is waited for until the page matches.
    """
    before = _latest(scene, folder) if again else None
    if again:
        retry(folder).act(scene)

    def latest() -> Run | None:
        run = _latest(scene, folder)
        if run is None or (before and run["retry"] == before["retry"]):
            scene.note.text = "no run yet"
            return None
        scene.note.text = f"{run['run']}: {run['outcome']}, at {run['stage']}: {run.get('why', '')}"
        if outcome == "running":
            return run if re.search(prints, _page(scene, run), _PAGE) else None
        return run if run["outcome"] != "running" else None

    run = scene.wait_until(f"{folder} {outcome}", latest, timeout_s)
    expected = rf"^outcome +{outcome}, at {at}$.*?{prints}"
    page = _page(scene, run)
    if not re.search(expected, page, _PAGE):
        raise ScenarioFailed(f"printed nothing that matches {expected!r}:\n{page}")
    scene.note.text = f"{run['run']}: {run.get('why') or run['outcome']}"
    if outcome != "running":
        claim = f"{folder} ends as {outcome} at {at}"
        scene.record.checks.append(Check(claim, str(run.get("why") or "no fault")))


@step("preempt the slice of {folder} at step {number}")
def preempted(scene: Scene, folder: str, number: int, timeout_s: float = 300.0) -> None:
    """Preempt the slice of a folder's run without notice once its training has reached a step."""

    def reached() -> Run | None:
        run = _latest(scene, folder)
        if run and run["outcome"] != "running":
            raise ScenarioFailed(f"{run['run']} has ended: {run['outcome']}, {run.get('why', '')}")
        if run is None or not run.get("training"):
            scene.note.text = f"{run['run']}: {run['outcome']}, at {run['stage']}" if run else "no run yet"
            return None
        return run if training(scene, run["run"], number, 0) is not None else None

    run = scene.wait_until(f"{folder} at step {number}", reached, timeout_s)
    client = owner(scene)
    parent = f"projects/{scene.bucket.project}/locations/{client.values['zone']}"
    listed = client.send("v2", "tpu.projects.locations.nodes.list", {"parent": parent}).get("nodes", ())
    own = [node["name"] for node in listed if node.get("labels", {}).get("fleet") == run["run"]]
    if len(own) != 1:
        raise ScenarioFailed(f"{run['run']} has {len(own)} slices: {', '.join(own)}")
    node, lost_at = own[0].rpartition("/")[2], time.time()
    scene.control.preempt(node, notice=False)  # the function may have replaced it a second later
    record_fault(scene, node, "power-loss", run["run"], lost_at)
    scene.note.text = f"{node} of {run['run']}"


@step("the training of {folder} resumed from step {from_step}")
def continued(scene: Scene, folder: str, from_step: int) -> None:
    """Check that the training of a folder's run resumed from a checkpoint of at least this step."""
    run = _latest(scene, folder)
    if run is None:
        raise ScenarioFailed(f"{folder} has no run")
    resumed(run["run"], from_step).act(scene)


@step("first shard of {folder}: back is {back}")
def shard(scene: Scene, folder: str, back: bool = False) -> None:
    """Delete the first shard that the run of a folder left, or put it back."""
    login = Credentials.from_authorized_user_file(person.credentials("owner"))  # type: ignore[no-untyped-call]
    bucket = Client(scene.bucket.project, credentials=login).bucket(scene.bucket.name)
    if back:
        name, content = scene.shards.pop(folder)
        bucket.blob(name).upload_from_string(content)
    else:
        run = _latest(scene, folder)
        if run is None or not run.get("folder"):
            raise ScenarioFailed(f"{folder} has no shards")
        manifest = json.loads(scene.bucket.text(f"{run['folder']}/manifest.json"))
        name = f"{run['folder']}/{manifest['shards'][0]['file']}"
        scene.shards[folder] = name, bucket.blob(name).download_as_bytes()
        bucket.blob(name).delete()
    scene.note.text = name


@step("of {folder} there are batches {batches} and {slices} slices")
def made(
    scene: Scene,
    folder: str,
    batches: tuple[str, ...],
    slices: int = 0,
    late: bool = False,
    timeout_s: float = 60.0,
) -> None:
    """Wait until Google's APIs list exactly these batches, by state, and so many slices for the run of a
    folder, which was claimed once.

    `slices` counts the creations that were accepted, by audit entries; with `late` the event of the folder
    was delivered once more after the run had ended.
    """

    def complete() -> bool:
        run = _latest(scene, folder)
        if run is None:
            return False
        states, names, claims = _batches(scene, run), _slices(scene, run), _claims(scene, run)
        scene.note.text = (
            f"batches {', '.join(states)}; {len(names)} slices {', '.join(names)}; claimed {claims} times"
        )
        after = not late or any(at > str(run.get("ended")) for at in _deliveries(scene, folder))
        # A surplus can't go away: the time-out reports it.
        return (tuple(states), len(names), claims, after) == (batches, slices, 1, True)

    claim = f"of {folder} there are {len(batches)} batches and {slices} slices"
    scene.wait_until(claim, complete, timeout_s, poll_s=1.0)
    scene.record.checks.append(Check(claim, scene.note.text))


def _batches(scene: Scene, run: Run) -> list[str]:
    """Return the states of a run's batches, the oldest first."""
    pattern = re.compile(rf".*-{run['run']}(-\d+)?")
    batches = [batch for batch in _listed(scene) if pattern.fullmatch(batch["name"])]
    return [batch["state"] for batch in sorted(batches, key=lambda batch: str(batch["createTime"]))]


def _listed(scene: Scene) -> list[dict[str, Any]]:
    """All batches of the project."""
    client = owner(scene)
    parent = f"projects/{scene.bucket.project}/locations/{client.values['region']}"
    answer = client.send("v1", "dataproc.projects.locations.batches.list", {"parent": parent})
    return list(answer.get("batches", ()))


def _slices(scene: Scene, run: Run) -> list[str]:
    """Return the names of a run's slices with an accepted creation."""
    entries = _entries(scene, 'protoPayload.methodName:"Tpu.CreateNode" AND severity="NOTICE"')
    requests = [entry["protoPayload"]["request"] for entry in entries]
    pattern = re.compile(rf"{run['run']}(-\d+)?")
    fleets = [(item["node"].get("labels", {}).get("fleet", ""), item["nodeId"]) for item in requests]
    return [f"{fleet} ({node})" for fleet, node in fleets if pattern.fullmatch(fleet)]


def _claims(scene: Scene, run: Run) -> int:
    """Return how often the function began the run, by its log."""
    begun = f'jsonPayload.event="pipeline_begin" AND jsonPayload.run="{run["run"]}"'
    return len(_entries(scene, begun))


def _entries(scene: Scene, matching: str) -> list[dict[str, Any]]:
    """Return entries of Cloud Logging."""
    body = {"resourceNames": [f"projects/{scene.bucket.project}"], "filter": matching, "pageSize": 1000}
    return list(owner(scene).send("v2", "logging.entries.list", {"body": body}).get("entries", ()))


def _deliveries(scene: Scene, folder: str) -> list[str]:
    """Return the times at which an event of a folder's `_SUBMIT` was accepted."""
    return [
        str(request["time"])
        for request in scene.control.requests()["requests"]
        if request["method_id"] == _DELIVERY
        and request["path"].endswith(f"/objects/{folder}{_SUBMIT}")
        and request["status"] == 200
    ]


def _latest(scene: Scene, folder: str) -> Run | None:
    """Return the record of the newest run of a folder."""
    raw = f"gs://{_setting(scene, 'pipeline:rawBucketName')}/{folder}"
    names = [name for name in scene.controllers.names(f"{_RECORDS}r") if name.endswith("/run.json")]
    runs = [run for run in map(scene.controllers.json, names) if run and run["raw"] == raw]
    return max(runs, key=lambda run: int(run["run"][1:]), default=None)


def _page(scene: Scene, run: Run) -> str:
    """Return the output of `tpu pipeline status` for a run."""
    return scene.shell.run(["tpu", "pipeline", "status", scene.environment, run["run"]])


def _setting(scene: Scene, name: str) -> str:
    return str(read_settings(scene.program, scene.environment)[name])
