"""The emulated cloud for tests of its services, with a bucket and operations to wait for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rehearsal.cloud.cloud import Cloud
from rehearsal.cloud.control import Control
from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.runtime import Runtime
from tests.emulated import EVERY_API, NUMBER, OWNER, PROJECT, REFRESH_TOKEN, ZONES, Emulated, Reply
from tests.limits import until

__all__ = ["NUMBER", "OWNER", "PROJECT", "REFRESH_TOKEN", "BuildingCloud", "CloudFront", "Reply"]


class BuildingCloud(Cloud):
    """Runs builds by `builder`, which a test sets."""

    builder: Callable[[JsonObject], Awaitable[None]]

    def make_runtime(self) -> Runtime:
        async def run(build: JsonObject) -> None:
            await self.builder(build)

        return replace(super().make_runtime(), run_build=run)


class CloudFront(Emulated):
    """The cloud; `more` are fields of its configuration."""

    kind = BuildingCloud

    def __init__(self, folder: Path, **more: Any) -> None:
        super().__init__(folder, **{"zones": ZONES, "enabled_apis": EVERY_API, **more})
        self.control = Control(folder / "control")

    def jump(self, virtual_s: float) -> None:
        """Advance the clock at once."""
        self.call(self.world.clock.jump(virtual_s))

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
        return until(lambda: (operation := self.request("GET", f"{host}/{name}").json)["done"] and operation)

    def bucket(self, name: str) -> None:
        url = f"storage.googleapis.com/storage/v1/b?project={PROJECT}"
        assert self.request("POST", url, {"name": name}).status == 200

    def upload(self, bucket: str, name: str, size: int = 1000) -> Any:
        """The new object's resource."""
        url = f"storage.googleapis.com/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
        reply = self.request("POST", url, b"x" * size)
        assert reply.status == 200, reply.body
        return reply.json
