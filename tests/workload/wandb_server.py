"""W&B's server, as far as its package needs one for the history of runs: what it got, by its own requests.

Lines of a run's history have a place, which the client names, so that a repeated request changes nothing.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.served import Received, Reply, serving

_STREAM = re.compile(r"/files/([^/]+)/([^/]+)/([^/]+)/file_stream")
_HISTORY = "wandb-history.jsonl"


@dataclass
class Server:
    """Histories by entity, project and id of the run; `address` is HOST:PORT."""

    address: str = ""
    histories: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)
    names: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def answer(self, request: Received) -> Reply:
        if match := _STREAM.fullmatch(request.path):
            return self._streamed((match[1], match[2], match[3]), json.loads(request.body))
        if request.path == "/graphql":
            posted = json.loads(request.body)
            return Reply(body={"data": self._data(posted["query"], posted.get("variables") or {})})
        return Reply()

    def _streamed(self, run: tuple[str, str, str], body: dict[str, Any]) -> Reply:
        lines = self.histories[run]
        part = body.get("files", {}).get(_HISTORY, {"offset": 0, "content": []})
        begin, end = part["offset"], part["offset"] + len(part["content"])
        assert begin <= len(lines), "a gap in the history"
        lines[begin:end] = part["content"]
        return Reply(body={})

    def _data(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        run = (given.get("entity"), given.get("project"), given.get("name"))
        if "upsertBucket" in query:
            inserted = run not in self.histories
            self.histories.setdefault(run, [])
            self.names[run] = given["displayName"]
            return {"upsertBucket": {"bucket": self._bucket(run), "inserted": inserted}}
        if "RunResumeStatus" in query:
            bucket = self._bucket(run) if run in self.histories else None
            entity = {"id": "entity", "name": run[0]}
            return {"model": {"id": "project", "name": run[1], "entity": entity, "bucket": bucket}}
        if "createRunFiles" in query:
            uploads = f"http://{self.address}/uploads"
            urls = [{"name": name, "uploadUrl": f"{uploads}/{name}"} for name in given["files"]]
            return {"createRunFiles": {"runID": "run", "uploadHeaders": [], "files": urls}}
        if "viewer" in query:
            viewer = {"id": "viewer", "entity": "team", "username": "me", "email": "me@example.com"}
            return {"viewer": {**viewer, "flags": "{}", "teams": {"edges": []}}}
        if "serverInfo" in query:
            return {"serverInfo": {"features": []}}
        return {}

    def _bucket(self, run: tuple[str, str, str]) -> dict[str, Any]:
        lines = self.histories[run]
        entity, project, id_ = run
        return {
            "id": id_, "name": id_, "displayName": self.names[run], "description": "", "config": "{}",
            "sweepName": None, "summaryMetrics": "{}", "tags": [], "notes": None, "wandbConfig": '{"t": 1}',
            "historyLineCount": len(lines), "eventsLineCount": 0, "logLineCount": 0,
            "historyTail": json.dumps(lines[-1:]), "eventsTail": "[]",
            "project": {"id": "project", "name": project, "entity": {"id": "entity", "name": entity}},
        }  # fmt: skip


@contextmanager
def serve() -> Iterator[Server]:
    """Serve until the end of the context."""
    server = Server()
    with serving(server.answer) as address:
        server.address = address
        yield server
