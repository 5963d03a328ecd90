"""A storage that kills its client just before or just after it serves a request, and a saver for it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.proofs.forks import Zygote
from tests.rehearsal.cloud.storage.storage_front import PROJECT, Front

BUCKET = "proofs"


class KillingFront(Front):
    """The rehearsal's storage; it counts from where the client says, and kills at a request."""

    pid = 0
    kill_at = 0
    since = ""  # counted to kill_at from the first request that names this
    before = True
    killed: str = ""
    counted: list[str] | None = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/count-from-here":
            self.counted = []
            return web.Response()
        if self.counted is None:
            return await super()._handle(request)
        self.counted.append(f"{request.method} {request.path_qs.partition('?')[0]}")
        first = next(
            (n for n, observed in enumerate(self.counted) if self.since in observed), len(self.counted)
        )
        due = len(self.counted) - first == self.kill_at
        if due and self.before:
            self._kill()
            return web.Response(status=500)
        answer = await super()._handle(request)
        if due:
            self._kill()
        return answer

    def kill(self) -> None:
        """Ends the client now, if it hasn't ended by itself."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def _kill(self) -> None:
        assert self.counted
        os.kill(self.pid, signal.SIGKILL)
        self.killed = self.counted[-1]


class Proof:
    """Saves and restores against one storage, one run a case."""

    def __init__(self, folder: Path):
        self._requests: list[str] = []
        self.front = KillingFront(folder)
        versioned = {"name": BUCKET, "versioning": {"enabled": True}}  # so that nothing is overwritten unseen
        self.front.request("POST", "b", versioned, project=PROJECT)
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "STORAGE_EMULATOR_HOST": self.front.url,
            "TENSORSTORE_GCS_HTTP_URL": self.front.url,
            # The client asks for the bucket in a thread of its own, or doesn't, as it happens.
            "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA": "true",
        }
        self._zygote = Zygote("zygote", environment=environment)

    def do(
        self,
        what: str,
        run: str,
        kill_at: int = 0,
        before: bool = True,
        since: str = "",
        began: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Runs one child; returns its wait status, its result if it lived to tell, and what it requested.

        Requests are those from where the child says, if it says so.
        """
        self._zygote.send({"do": what, "run": f"gs://{BUCKET}/{run}"})
        self.front.pid = self._zygote.read()["pid"]
        self.front.kill_at, self.front.before, self.front.since = kill_at, before, since
        self.front.killed, self.front.counted = "", None
        self._zygote.send({})
        began()
        answer = self._zygote.read()
        if answer["status"] == 0:
            answer["result"] = json.loads(answer["printed"].splitlines()[-1])
        answer["requests"], self.front.kill_at, self.front.counted = self.front.counted, 0, None
        return answer

    def case(self, number: int, before: bool, since: str = "") -> tuple[str, int]:
        """Kills a save at a request and continues; returns the request and the step that was found.

        Requests are counted from the first that names `since`: how many come before it depends on how
        busy the machine is.

        Raises:
            AssertionError: nobody was killed, or what was found isn't what was saved.
        """
        run = f"{'before' if before else 'after'}-{number}{'-since' if since else ''}"
        done = self.do("save", run, number, before, since)
        assert done["status"] == signal.SIGKILL, f"{run}: nobody was killed ({done})"
        request = self.front.killed
        result = self.do("restore", run)
        assert result["status"] == 0, f"{run}, {request}: {result}"
        assert result["result"]["step"] in (1, 2), f"{run}, {request}: {result}"
        assert result["result"]["then"] == 3, f"{run}, {request}: {result}"
        return request, int(result["result"]["step"])

    def requests(self) -> list[str]:
        """The requests of an undisturbed save."""
        if not self._requests:
            done = self.do("save", "undisturbed")
            assert done["status"] == 0, done
            self._requests = list(done["requests"])
        return self._requests

    def objects(self, run: str) -> dict[str, list[str]]:
        """All below a run: by name, the md5 of every version there ever was."""
        listing = self.front.request("GET", f"b/{BUCKET}/o", prefix=f"{run}/", versions=True).json
        mapping: dict[str, list[str]] = {}
        for item in listing.get("items", []):
            mapping.setdefault(item["name"].removeprefix(f"{run}/"), []).append(item["md5Hash"])
        return mapping

    def close(self) -> None:
        self._zygote.close()
        self.front.close()
