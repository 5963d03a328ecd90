"""Steps about runs of the pipeline, each named by its folder of the raw bucket."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.cloud.storage import Bucket, Client
from google.oauth2.credentials import Credentials

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario.owner import owner
from rehearsal.scenario.record import Check
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.step import step
from rehearsal.world import person
from rehearsal.world.checkout import read_settings

Run = dict[str, Any]
_WORDS = ("a", "batch", "of", "text", "becomes", "tokens", "and", "tokens", "become", "a", "checkpoint")
_PAGE = re.MULTILINE | re.DOTALL
_RECORDS, _SUBMIT, _TWICE = "pipeline/", "_SUBMIT", 10
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
    """Upload copies of one object; the events of the copies are lost, since each would only start an
    execution.
    """
    match = {"method": "eventarc.events.deliver", "path": f"objects/{re.escape(folder)}part-"}
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
    """`tpu pipeline retry` for the run of a folder; returns once Workflows has the new execution."""
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
    executions: tuple[str, ...] = (),
    late: bool = False,
    timeout_s: float = 60.0,
) -> None:
    """Wait until Google's APIs list exactly these batches, by state, and so many slices for the run of a
    folder.

    `slices` counts the creations that were accepted, by audit entries; `executions` are outcomes of all that
    the folder's events and commands started, with `late` one that began when the run had ended.
    """

    def complete() -> bool:
        run = _latest(scene, folder)
        if run is None:
            return False
        states, names = _batches(scene, run), _slices(scene, run)
        runs = _executions(scene, folder) if executions else []
        scene.note.text = f"batches {', '.join(states)}; {len(names)} slices {', '.join(names)}"
        outcomes = sorted(outcome for _, outcome in runs)
        if executions:
            scene.note.text += f"; executions {', '.join(outcomes)}"
        began_late = not late or (runs and runs[-1][0] > str(run.get("ended")))
        # A surplus can't go away: the time-out reports it.
        expected = (batches, slices, tuple(sorted(executions)), True)
        return (tuple(states), len(names), tuple(outcomes), bool(began_late)) == expected

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
    """Return the slices of a run with an accepted creation."""
    request = {
        "resourceNames": [f"projects/{scene.bucket.project}"],
        "filter": 'protoPayload.methodName:"Tpu.CreateNode" AND severity="NOTICE" AND '
        f'protoPayload.resourceName:"/nodes/{run["run"]}"',
        "pageSize": 1000,
    }
    answer = owner(scene).send("v2", "logging.entries.list", {"body": request})
    names = [entry["protoPayload"]["resourceName"].rpartition("/")[2] for entry in answer.get("entries", ())]
    return [name for name in names if re.fullmatch(rf"{run['run']}(-\d+)?", name)]


def _executions(scene: Scene, folder: str) -> list[tuple[str, str]]:
    """Return start and outcome of each execution for a folder, the oldest first."""
    client = owner(scene)
    place = f"projects/{scene.bucket.project}/locations/{client.values['region']}/workflows/tpu-pipeline"
    request = {"parent": place, "view": "FULL"}
    answer = client.send("v1", "workflowexecutions.projects.locations.workflows.executions.list", request)
    outcomes = []
    for execution in answer.get("executions", ()):
        argument = json.loads(execution.get("argument", "null"))
        if argument.get("data", {}).get("name") == f"{folder}{_SUBMIT}":
            result = (
                json.loads(execution["result"])
                if "result" in execution
                else {"outcome": execution["state"].lower()}
            )
            outcomes.append((str(execution["startTime"]), str(result["outcome"])))
    return sorted(outcomes)


def _latest(scene: Scene, folder: str) -> Run | None:
    """Return the record of the newest run of a folder."""
    raw = f"gs://{_setting(scene, 'pipeline:rawBucketName')}/{folder}"
    names = [name for name in scene.bucket.names(f"{_RECORDS}r") if name.endswith("/run.json")]
    runs = [run for run in map(scene.bucket.json, names) if run and run["raw"] == raw]
    return max(runs, key=lambda run: int(run["run"][1:]), default=None)


def _page(scene: Scene, run: Run) -> str:
    """Return the output of `tpu pipeline status` for a run."""
    return scene.shell.run(["tpu", "pipeline", "status", scene.environment, run["run"]])


def _setting(scene: Scene, name: str) -> str:
    return str(read_settings(scene.program, scene.environment)[name])
