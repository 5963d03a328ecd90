"""The front door with every service but storage and TPU behind it, on a loopback port, for real clients."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from rehearsal.cloud.core.clock import VirtualClock
from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.operations import Operations
from rehearsal.cloud.core.runtime import Runtime
from rehearsal.cloud.core.service import Call, Method, Service
from rehearsal.cloud.core.world import Lags, World
from rehearsal.cloud.door.doorway import Doorway
from rehearsal.cloud.door.faults import Faults
from rehearsal.cloud.door.requestlog import RequestLog
from rehearsal.cloud.door.server import FrontDoor
from rehearsal.cloud.iam.audit import Audit
from rehearsal.cloud.iam.credentials import CredentialsService
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.iam.oauth import OAuth
from rehearsal.cloud.services import entries
from rehearsal.cloud.services import services as entered
from rehearsal.cloud.services.caller import Caller
from rehearsal.cloud.services.functions.invocations import Invocations
from rehearsal.cloud.services.logging.entries import LoggingService
from rehearsal.cloud.services.monitoring.telemetry import Telemetry
from rehearsal.cloud.services.projects import ProjectService
from rehearsal.cloud.services.serviceusage import NEW_PROJECT, ServiceUsage
from rehearsal.cloud.services.storage.xml import XmlApi
from tests.limits import HANG_S

PROJECT, NUMBER, OWNER = "wire-test", "123456789012", "owner@example.com"
REFRESH_TOKEN = "1//refresh"
ZONES = ("us-east5-a", "us-east5-b", "us-central1-b")


class Media:
    """Two storage methods: one that streams, one that answers whole; for faults and batches."""

    api = "storage"
    versions = ("v1",)

    def __init__(self) -> None:
        self.deleted: list[str] = []

    def methods(self) -> dict[str, Method]:
        return {
            "storage.objects.get": Method(self._get, "storage.objects.get", _object),
            "storage.objects.delete": Method(self._delete, "storage.objects.delete", _object),
        }

    async def _get(self, call: Call) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = 1000
        await response.prepare(call.raw)
        await response.write(b"x" * 1000)
        return response

    async def _delete(self, call: Call) -> web.Response:
        self.deleted.append(call.path["object"])
        return web.Response(status=204)


def _object(call: Call) -> str:
    return f"projects/_/buckets/{call.path['bucket']}/objects/{call.path['object']}"


class Reply:
    """What came back."""

    def __init__(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"]["message"])


class CloudFront:
    """Virtual time runs 1,000 times as fast as real time, so that operations take milliseconds.

    With lags, the clock that they count in is `real_s`, and moves when a test moves it.
    """

    def __init__(
        self, *, enabled: tuple[str, ...] | None = None, log: Path | None = None, lags: Lags | None = None
    ) -> None:
        self._enabled = enabled
        self._lags = lags
        self.real_s = 0.0
        self.builder: Callable[[JsonObject], Awaitable[None]]  # runs builds; a test sets it
        self._log = log
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.call(self._start())

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the server's loop."""
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return future.result(HANG_S)

    async def _start(self) -> None:
        lagging = (self._lags, lambda: self.real_s) if self._lags is not None else ()
        self.world = World(PROJECT, NUMBER, VirtualClock(1000.0), *lagging)
        self.iam = Iam(self.world, OWNER)
        self.operations = Operations(self.world)
        self.faults = Faults(self.world.clock)
        self.requests = RequestLog(self._log)
        apis = ("tpu", *(entry.api for entry in entries()))
        every = (*NEW_PROJECT, *(f"{api}.googleapis.com" for api in apis))
        apis_on = every if self._enabled is None else self._enabled
        usage = ServiceUsage(self.world, self.operations, apis_on, iam=self.iam)
        oauth = OAuth(self.iam, {REFRESH_TOKEN: OWNER})
        self.media = Media()
        self.iam.create_bucket("projects/_/buckets/b")
        self.telemetry = Telemetry(self.world, self.iam)
        logging = LoggingService(self.world, self.iam, self.telemetry)
        self.caller = Caller(self.iam, lambda: ("127.0.0.1", self.port))
        runtime = Runtime(self.caller, self.telemetry, logging.write, run_build=self._build)
        services: list[Service] = [
            usage,
            oauth,
            ProjectService(self.world, self.iam),
            CredentialsService(self.world, self.iam),
            logging,
            *entered(self.world, self.operations, self.iam, runtime, ZONES),
            self.media,
        ]
        self.door = FrontDoor(
            self.world,
            self.iam,
            usage,
            services,
            endpoints=oauth.endpoints(),
            doorway=Doorway(self.world, self.faults, self.requests),
            audit=Audit(self.world, self.iam, logging.keep, self.telemetry),
            sites=[Invocations(self.world, self.iam, None)],
            translators=[XmlApi()],
        )
        self._runner = web.AppRunner(self.door.app(), shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = int(self._runner.addresses[0][1])

    async def _build(self, build: JsonObject) -> None:
        await self.builder(build)

    def close(self) -> None:
        async def stop() -> None:
            await self._runner.cleanup()
            for task in list(self.world.tasks):
                task.cancel()
            await self.caller.close()

        self.call(stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(HANG_S)
        assert self.world.mistakes == []

    def token(self, principal: str = OWNER, lifetime_s: float = 3600) -> str:
        async def mint() -> str:
            return self.iam.mint(principal, lifetime_s).value

        return str(self.call(mint()))

    def request(
        self,
        http_method: str,
        url: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """One request to `HOST/PATH`; as the owner unless a token is given ("" for none)."""
        host, _, path = url.partition("/")
        token = self.token() if token is None else token
        sent = {"Host": host, **({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)
        try:
            connection.request(http_method, f"/{path}", body=data, headers=sent)
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())
        finally:
            connection.close()

    def compute(self, http_method: str, path: str, body: Any = None, *, token: str | None = None) -> Reply:
        """A compute request, `path` below the project."""
        url = f"compute.googleapis.com/compute/beta/projects/{PROJECT}/{path}"
        return self.request(http_method, url, body, token=token)

    def done(self, reply: Reply) -> Any:
        """The compute operation that the reply started, once it is done."""
        assert reply.status == 200, reply.body
        link = reply.json["selfLink"].removeprefix("https://www.googleapis.com/")
        waited = self.request("POST", f"compute.googleapis.com/{link}/wait")
        assert waited.json["status"] == "DONE"
        return waited.json

    def until_done(self, host: str, name: str) -> Any:
        """A google.longrunning operation, once it is done."""
        for _ in range(60_000):
            operation = self.request("GET", f"{host}/{name}").json
            if operation["done"]:
                return operation
            time.sleep(0.01)
        raise AssertionError(f"{name} is not done")

    @contextmanager
    def stopped_clock(self) -> Iterator[None]:
        """No virtual time passes within."""
        rate = self.world.clock.rate
        self.call(self._set_rate(0.0))
        try:
            yield
        finally:  # others share this cloud: a test that fails must not stop it for them
            self.call(self._set_rate(rate))

    async def _set_rate(self, rate: float) -> None:
        self.world.clock.rate = rate

    def let_pass(self, virtual_s: float) -> None:
        """Let virtual time pass."""
        self.call(self.world.clock.sleep(virtual_s))
