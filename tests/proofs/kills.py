"""Each command that makes or ends something, killed at each of its changes, and typed again.

Its changes go to an emulated cloud, JobSets to a table of a cluster. A command is killed before its N-th
change is carried out, or after it and before the answer, or loses that answer and goes on. At that moment
each node must be in a record. The command again, struck again or not, comes to what an undisturbed one comes
to, nothing twice, or names what is there already; and what has ended stays ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aiohttp import web

from benchmarks.machine import described
from fleet.adhoc import Phase
from tests.emulated import url
from tests.fleet.lab import BUCKET, CONTROLLERS, PROJECT, STACK, Lab
from tests.proofs import opened
from tests.proofs.forks import Zygote
from tests.proofs.victims import CLUSTER, ZONE
from tests.rehearsal.cloud.cloud_front import BuildingCloud

RAW, STATE = "my-project-raw", "my-project-pulumi"
_LOST = "answer lost"
SIDES = ("before", "after", _LOST)
_STORAGE = "storage.googleapis.com"
_NAME, _RUN = "mine", "r17"
_OF_RUN = {
    "version": 1, "run": _RUN, "raw": f"gs://{RAW}/corpus/", "began": "2026-11-24T10:00:00Z",
    "began_s": 1_764_000_000.0, "stage": "preprocess",
}  # fmt: skip
_CREATE = (
    "fleet", "create", "dev", "--tpu-type", "v6e-8", "--zones", ZONE, "--workers-per-zone", "2",
    "--slice", _NAME, "--run", "extract qwen2.5-0.5b.toml --stream gs://b/x", "--yes",
)  # fmt: skip
_JOBSETS, _BUILDS = "jobset.x-k8s.io", f"cloudbuild.googleapis.com/v1/projects/{PROJECT}/builds"


class Killing(Lab):
    """The cloud, with a door for victims that counts their changes, and kills at one."""

    kind = BuildingCloud
    building = True  # builds run until the case is over

    def __init__(self, folder: Path) -> None:
        self.pid, self.at, self.side, self.struck = 0, 0, "", ""
        self.changes: list[str] = []
        self.jobsets: dict[str, Any] = {}
        super().__init__(folder, rate=20.0, apis=("cloudbuild.googleapis.com", "iam.googleapis.com"))
        for bucket in (RAW, STATE):
            versioned = {"name": bucket, "versioning": {"enabled": True}}  # so that nothing is made unseen
            self.request("POST", f"{_STORAGE}/storage/v1/b", versioned, project=PROJECT)
        accounts = f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts"
        self.request("POST", accounts, {"accountId": "tpu-builds"})
        self._published = {*self.names(BUCKET, "bundles/")}
        self._builds = self._submissions = 0  # of earlier cases
        self.cloud.builder = self._build  # type: ignore[attr-defined]
        self._zygote = Zygote("victims", self.door.rpartition(":")[2], self.token)

    async def _open(self, config: Any) -> None:
        await super()._open(config)
        self.door = url(await self.served(self._meet))

    async def _build(self, build: dict[str, Any]) -> None:
        while self.building:
            await asyncio.sleep(0.01)
        build["status"] = "SUCCESS"

    async def _meet(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET" or "GuestAttributes" in request.path or "dryRun" in request.query:
            return await self._answer(request)
        self.changes.append(f"{request.method} {request.host}{request.path}")
        due = len(self.changes) == self.at
        if due:
            self.struck = self.changes[-1]
        if due and self.side == "before":
            self._kill()
            return web.Response(status=500)
        answer = await self._answer(request)
        if due and self.side == "after":
            self._kill()
        if due and request.transport:
            request.transport.close()
        return answer

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.host == CLUSTER:
            return self._cluster(request, await request.read())
        return await self.forward(request, request.host)

    def _cluster(self, request: web.Request, body: bytes) -> web.Response:
        name = request.path.rpartition("/")[2]
        if _JOBSETS not in request.path:
            return web.json_response({"items": []})  # a queue, workloads, pods
        if name == "jobsets" and request.method == "GET":
            return web.json_response({"items": [*self.jobsets.values()]})
        if request.method == "POST":
            manifest = json.loads(body)
            name = manifest["metadata"]["name"]
            if name in self.jobsets:
                message = f'jobsets.jobset.x-k8s.io "{name}" already exists'
                return web.json_response({"kind": "Status", "message": message}, status=409)
            if "dryRun" not in request.query:
                about = {"uid": name, "creationTimestamp": "2026-11-26T10:00:00Z"}
                self.jobsets[name] = {**manifest, "metadata": {**manifest["metadata"], **about}, "status": {}}
            return web.json_response(manifest, status=201)
        if name not in self.jobsets:
            return web.json_response({"kind": "Status", "message": f'"{name}" not found'}, status=404)
        gone = request.method == "DELETE"
        return web.json_response(self.jobsets.pop(name) if gone else self.jobsets[name])

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def does(self, words: Sequence[str], at: int = 0, side: str = "") -> tuple[int, str]:
        """Run a command, struck at one of its changes; return its wait status and what it printed."""
        self.at, self.side, self.struck, self.changes = at, side, "", []
        self._zygote.send(words)
        self.pid = self._zygote.read()["pid"]
        self._zygote.send({})
        ended = self._zygote.read()
        self.at = 0
        return int(ended["status"]), str(ended["printed"])

    def close(self) -> None:
        self._zygote.close()
        super().close()

    # What stands

    def put(self, bucket: str, name: str, content: bytes) -> None:
        """Write an object."""
        place = f"{_STORAGE}/upload/storage/v1/b/{bucket}/o"
        self.request("POST", place, content, uploadType="media", name=name)

    def names(self, bucket: str, prefix: str = "") -> list[str]:
        """List the names of objects."""
        listed = self.request("GET", f"{_STORAGE}/storage/v1/b/{bucket}/o", prefix=prefix)
        return [item["name"] for item in listed.get("items", ())]

    def records(self) -> dict[str, Any]:
        """Return the records of fleets, by name."""
        folder, place = f"{STACK}/fleets/", f"{_STORAGE}/storage/v1/b/{CONTROLLERS}/o"
        return {
            name.removeprefix(folder).removesuffix(".json"): self.request(
                "GET", f"{place}/{quote(name, safe='')}", alt="media"
            )
            for name in self.names(CONTROLLERS, folder)
        }

    def disowned(self) -> list[str]:
        """Return the nodes that no record has."""
        records = self.records()
        return [
            name
            for name, node in self.everyone().items()
            if records.get(node["labels"].get("fleet"), {}).get("id") != node["labels"].get("record")
        ]

    def stands(self) -> dict[str, Any]:
        """Return all that commands make, without what differs from one time to the next."""
        nodes = Counter(
            f"{node['labels']['fleet']}/{node['labels']['member']}"
            for node in self.everyone().values()
            if node["state"] != "DELETING"
        )
        return {
            "nodes": dict(nodes),
            "records": {name: record["phase"] for name, record in self.records().items()},
            "jobs": sorted(self.jobsets),
            "submissions": len(self._all_submissions()) - self._submissions,
            "requests": self.names(CONTROLLERS, "pipeline-requests/"),
            "builds": len(self._all_builds()) - self._builds,
            "bundle": sorted(self.names(BUCKET, "bundles/")),
        }

    def clean(self) -> None:
        """Remove what a case has made."""
        self.building = False
        self.until(lambda: all(build["status"] == "SUCCESS" for build in self._all_builds()))
        self.building = True
        self._builds, self._submissions = len(self._all_builds()), len(self._all_submissions())
        self.begin_anew()
        self.jobsets.clear()
        made = {(RAW, name) for name in self.names(RAW)} | {(STATE, name) for name in self.names(STATE)}
        made |= {(BUCKET, name) for name in {*self.names(BUCKET, "bundles/")} - self._published}
        for bucket, name in made:
            self.request("DELETE", f"{_STORAGE}/storage/v1/b/{bucket}/o/{quote(name, safe='')}")

    def _all_submissions(self) -> list[str]:
        listed = self.request("GET", f"{_STORAGE}/storage/v1/b/{RAW}/o", versions="true")
        return [item["generation"] for item in listed.get("items", ()) if item["name"].endswith("_SUBMIT")]

    def _all_builds(self) -> list[dict[str, Any]]:
        return list(self.request("GET", _BUILDS).get("builds", ()))


@dataclass(frozen=True)
class Case:
    """A command that makes or ends something.

    Attributes:
        words: the command.
        prepare: makes what is there before it.
        refused: what it prints when it is typed again after all was done; empty: it does nothing then.
    """

    words: tuple[str, ...]
    prepare: Callable[[Killing], object] = lambda _: None
    refused: str = ""


def _must(lab: Killing, *words: str) -> None:
    status, printed = lab.does(words)
    assert status == 0, f"{words}: {status}\n{printed}"
    lab.settle()


def _created(lab: Killing) -> None:
    _must(lab, *_CREATE)


def _lost(lab: Killing) -> None:
    _created(lab)
    lab.preempt(*list(lab.everyone())[:1])


def _done(lab: Killing) -> None:
    """A program that stops its slice when it has ended, has: by its heartbeat, and attested."""
    _must(lab, "run", _NAME)
    (machine,) = lab.cloud.nodes.all()
    lab.until(lambda: lab.state(machine.id) == "READY")
    now_s = time.time() + 5.0
    status = {"state": "done", "command": "", "updated_s": now_s, "why": "", "final": True}
    for attributes in machine.guest_attributes:
        attributes.agent_writes("tpu", "job", json.dumps(status))
    for worker in range(len(machine.guest_attributes)):
        name = f"heartbeats/{machine.id}/worker-{worker}"
        lab.put(BUCKET, name, b"")
        place = f"{_STORAGE}/storage/v1/b/{BUCKET}/o/{quote(name, safe='')}"
        lab.request("PATCH", place, {"metadata": {"state": "done"}})
    lab.hosts.may_go.add(machine.id)


def _recorded(**changes: Any) -> Callable[[Killing], None]:
    record = json.dumps({**_OF_RUN, "outcome": "running", **changes}).encode()
    return lambda lab: lab.put(CONTROLLERS, f"pipeline/{_RUN}/run.json", record)


def _text(lab: Killing) -> None:
    lab.put(RAW, "corpus/a.jsonl", b"x" * 1000)


_PENDING = "another request isn't applied yet"
_JOB = ("job", "submit", "dev", "vision", "--detach", "--", "train", "tiny.toml")
_SUBMIT = ("pipeline", "run", "dev", f"gs://{RAW}/corpus/", "--yes", "--detach")
_OF_FLEET, _YES = ("dev", "--slice", _NAME, "--yes"), ("dev", _RUN, "--yes")
CASES = {
    "fleet create": Case(_CREATE),
    "fleet delete": Case(("fleet", "delete", *_OF_FLEET), _created, "mine has ended (deleted by a command)"),
    "fleet recover": Case(("fleet", "recover", *_OF_FLEET), _lost),
    "run": Case(("run", _NAME)),
    "fleet monitor": Case(("monitor",), _done),
    "the function's sweep": Case(("sweep", _RUN)),
    "pipeline run": Case(_SUBMIT, _text, "was submitted already, as r"),
    "pipeline cancel": Case(("pipeline", "cancel", *_YES), _recorded(), _PENDING),
    "pipeline retry": Case(("pipeline", "retry", *_YES), _recorded(outcome="failed"), _PENDING),
    "job submit": Case(_JOB, refused="tpu job cancel dev vision train-tiny"),
    "job cancel": Case(("job", "cancel", "dev", "vision", "train-tiny", "--yes"),
                       lambda lab: _must(lab, *_JOB), "no job train-tiny"),
    "builds submit": Case(("builds", "destroy"), refused="gcloud builds cancel"),
    "publish": Case(("publish",)),
}  # fmt: skip


@dataclass
class Outcome:
    """End of a command that was struck at its changes.

    Attributes:
        changes: of one that isn't disturbed.
        kills: number of those that were killed.
        lost: number of answers lost by one that went on.
        refused: number of those that, typed again, named what was there already.
        problems: what wasn't as it must be.
    """

    changes: int = 0
    kills: int = 0
    lost: int = 0
    refused: int = 0
    problems: list[str] = field(default_factory=list)


def strike(
    lab: Killing, case: Case, blows: Sequence[tuple[int, str]], expected: dict[str, Any], outcome: Outcome
) -> str:
    """Strike a command at a change, also when it is typed again if there are more blows, and type it again.

    Returns the change that was struck first; empty if there were fewer.
    """
    lab.clean()
    case.prepare(lab)
    first = ""
    for at, side in blows:
        status, printed = lab.does(case.words, at, side)
        if not (struck := lab.struck):
            break
        first = first or struck
        if side == _LOST:
            outcome.lost += 1
        else:
            outcome.kills += 1
            if status != signal.SIGKILL:
                outcome.problems.append(f"{struck}, {side}: nobody was killed: {status} {printed}")
        lab.settle()
        if disowned := lab.disowned():
            outcome.problems.append(f"{struck}, {side}: no record has {disowned}")
    struck, side = first, " then ".join(side for _, side in blows)
    status, printed = lab.does(case.words)
    lab.settle()
    if status and case.refused and case.refused in printed:
        outcome.refused += 1
    elif status:
        outcome.problems.append(f"{struck}, {side}: again: {status} {printed}")
    if (stands := lab.stands()) != expected:
        outcome.problems.append(f"{struck}, {side}: {stands} instead of {expected}")
    if Phase.ENDED in expected["records"].values():
        _must(lab, "monitor")
        if (stands := lab.stands()) != expected:
            outcome.problems.append(f"{struck}, {side}: what had ended is {stands}")
    return struck


def measure(names: Sequence[str], seed: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Strike each command at each change, then once more at any when it is typed again.

    Raises SystemExit where one left a trace.
    """
    begun, outcomes, draw = time.monotonic(), dict[str, Outcome](), random.Random(seed)
    with opened(Killing) as lab, lab.entered():
        for name in names or CASES:
            case, outcome = CASES[name], outcomes.setdefault(name, Outcome())
            lab.clean()
            case.prepare(lab)
            _must(lab, *case.words)
            outcome.changes, expected = len(lab.changes), lab.stands()
            report(f"{name}: {outcome.changes} changes come to {expected}")
            blows = [[(at, side)] for at in range(1, outcome.changes + 1) for side in SIDES]
            again = ((draw.randint(1, outcome.changes), draw.choice(SIDES[:2])) for _ in blows)
            blows += [[*first, second] for first, second in zip(blows, again, strict=True)]
            for several in blows:
                known = len(outcome.problems)
                struck = strike(lab, case, several, expected, outcome)
                report(f"{name} {several}: {struck} {time.monotonic() - begun:.0f} s")
                for problem in outcome.problems[known:]:
                    report(problem)
    table = {name: vars(outcome) for name, outcome in outcomes.items()}
    kills = sum(outcome.kills for outcome in outcomes.values())
    lost = sum(outcome.lost for outcome in outcomes.values())
    problems = [f"{name}: {text}" for name, outcome in outcomes.items() for text in outcome.problems]
    if problems:
        raise SystemExit("\n".join(problems))
    took_s = round(time.monotonic() - begun, 1)
    return {"kills": kills, "lost_answers": lost, "commands": table, "seconds": took_s, "on": described(())}
