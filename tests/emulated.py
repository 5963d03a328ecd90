"""The emulated cloud of tests, in a thread with a loop of its own, for clients on a loopback port."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import requests
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from rehearsal.cloud.cloud import Cloud
from rehearsal.cloud.config import CloudConfig
from rehearsal.cloud.core.world import NO_LAGS
from rehearsal.cloud.door.doorway import break_stream
from rehearsal.cloud.services import entries
from rehearsal.cloud.services.serviceusage import NEW_PROJECT
from rehearsal.hosts.errors import HostError
from rehearsal.hosts.spec import HostSpec
from tests.limits import HANG_S

PROJECT, NUMBER, OWNER = "wire-test", "123456789012", "owner@example.com"
REFRESH_TOKEN = "1//refresh"
ZONES = ("us-east5-a", "us-east5-b", "us-central1-b")
EVERY_API = (
    *NEW_PROJECT,
    *(f"{api}.googleapis.com" for api in ("tpu", *(entry.api for entry in entries()))),
)


class PretendedHosts:
    """Machines that do what they are told, at once; `deaf` ones ignore the power button."""

    def __init__(self) -> None:
        self.on: dict[str, HostSpec] = {}
        self.events: list[tuple[str, str]] = []
        self.deaf = False
        self.broken: set[str] = set()
        self.may_boot = asyncio.Event()
        self.may_boot.set()

    async def boot(self, spec: HostSpec) -> None:
        await self.may_boot.wait()
        if spec.name in self.broken:
            raise HostError(f"{spec.name} did not boot")
        self.on[spec.name] = spec
        self.events.append(("boot", spec.name))

    async def power_off(self, name: str) -> None:
        self.events.append(("power_off", name))
        if not self.deaf:
            self.on.pop(name, None)

    async def cut_power(self, name: str) -> None:
        if self.on.pop(name, None) is not None:
            self.events.append(("cut_power", name))

    async def discard(self, name: str) -> None:
        await self.cut_power(name)
        self.events.append(("discard", name))

    def running(self, name: str) -> bool:
        return name in self.on


def config(folder: Path, project: str = PROJECT, **more: Any) -> CloudConfig:
    """A cloud without lags or metadata server, on a loopback port, whose clock runs 1,000 times as fast."""
    return CloudConfig(
        project, folder / "cloud", folder / "control", OWNER, REFRESH_TOKEN,
        **{"front_door": "127.0.0.1:0", "metadata": "", "clock_rate": 1000.0, "lags": NO_LAGS, **more},
    )  # fmt: skip


class Reply:
    """The answer to a request."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"]["message"])

    @property
    def reason(self) -> str:
        """The legacy reason of an error."""
        return str(self.json["error"]["errors"][0]["reason"])


def url(runner: web.AppRunner) -> str:
    return f"http://127.0.0.1:{runner.addresses[0][1]}"


class Emulated:
    """The whole cloud; `more` are fields of its configuration. `close` fails for errors of the emulation."""

    kind = Cloud

    def __init__(self, folder: Path, project: str = PROJECT, hosts: Any = None, **more: Any) -> None:
        self.hosts = hosts or PretendedHosts()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.call(self._open(config(folder, project, **more)))

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def _open(self, config: CloudConfig) -> None:
        self.cloud = self.kind(config, self.hosts, monotonic_s=self.monotonic_s)
        self.world, self.iam, self.faults = self.cloud.world, self.cloud.iam, self.cloud.faults
        self.requests = self.cloud.requests
        await self.cloud.start()
        self.port = self.cloud.port

    def monotonic_s(self) -> float:
        """The real clock, in which lifetimes of tokens count."""
        return time.monotonic()

    def call(self, work: Coroutine[Any, Any, Any], timeout_s: float = HANG_S) -> Any:
        """Run a coroutine in the cloud's loop."""
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return future.result(timeout_s)

    async def served(self, handle: Callable[[web.Request], Any]) -> web.AppRunner:
        """Serve a handler on a port of its own until the cloud closes."""
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:(?s:.*)}", handle)
        app.on_response_prepare.append(break_stream)
        runner = await self.cloud.runner(app)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    async def forward(self, request: web.Request, host: str, path: str = "") -> web.StreamResponse:
        """Hand a request to the front door as one to `host`, and to `path` if that differs."""
        headers = CIMultiDict(request.headers)
        headers["Host"] = host
        target = URL(path, encoded=True) if path else request.rel_url
        return await self.cloud.front_door.handle(request.clone(headers=headers, host=host, rel_url=target))

    def token_of(self, principal: str = OWNER, lifetime_s: float | None = None) -> str:
        """Return an access token for this account."""

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
        """Send a request to `HOST/PATH`; as the owner unless a token is given ("" for none)."""
        host, _, path = url.partition("/")
        token = self.token_of() if token is None else token
        sent = {"Host": host, **({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)) as connection:
            connection.request(http_method, f"/{path}", body=data, headers=sent)
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())

    def grant(self, resource: str, role: str, member: str, condition: Any = None) -> None:
        """Add a binding to the policy of a resource."""
        binding = {"role": role, "members": [member]} | ({"condition": condition} if condition else {})

        async def add() -> None:
            policy = self.iam.policy(resource)
            bindings = [*policy["bindings"], binding]
            self.iam.set_policy(resource, {**policy, "version": 3, "bindings": bindings})

        self.call(add())

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

    def unwatch(self) -> None:
        """Stop the evaluation of alert policies every virtual minute: jumps over weeks are quick then."""
        for task in self.world.tasks:
            task.cancel()

    def close(self) -> None:
        self.call(self.cloud.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(HANG_S)
        assert self.world.mistakes == []


class Session(requests.Session):
    """Sends to the emulated cloud as an account; `before` is called with each URL."""

    def __init__(self, cloud: Emulated, who: str = OWNER):
        super().__init__()
        self.cloud, self.who = cloud, who
        self.before: Callable[[str], None] = lambda _: None

    def request(self, method: Any, url: Any, params: Any = None, data: Any = None, **more: Any) -> Any:  # type: ignore[override]
        full = str(requests.Request(method, url, params=params).prepare().url).removeprefix("https://")
        self.before(full)
        token, headers = self.cloud.token_of(self.who), dict(more["headers"])
        reply = self.cloud.request(method, full, data, token=token, headers=headers)
        answer = requests.Response()
        answer.status_code, answer._content = reply.status, reply.body
        return answer
