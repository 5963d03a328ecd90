"""All layers on an emulated Google Cloud, by the real Pulumi CLI, that can be killed at any request.

Real are the program, the CLI, the commands of `tpu infra`, the plugin (the stand-in) and the front
door. What isn't: machines do nothing, and Google's clock runs 200 times as fast.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import requests
import yaml
from aiohttp import web

from infra.core.layer import directory
from infra.layers.tpu import startup
from infra.settings.sources import ROOT
from infra.slices.names import bundle_blob, bundle_manifest
from rehearsal.cloud.config import CloudConfig
from rehearsal.cloud.core.world import NO_LAGS, Lags
from rehearsal.cloud.services.compute.disks import add_snapshot
from rehearsal.cloud.services.serviceusage import NEW_PROJECT
from rehearsal.providers.gcp import terraform
from rehearsal.providers.gcp.install import install
from tests.emulated import Emulated, url
from tests.limits import HANG_S

PROJECT, OWNER, BUCKET, BUNDLE = "wire-test", "owner@example.com", "wire-test-checkpoints", "ab" * 32
RETAINED = {BUCKET, f"{BUCKET}-steps"}
"""Buckets that outlive a `destroy`."""
ACCOUNT = f"tpu-training@{PROJECT}.iam.gserviceaccount.com"
KINDS = {"networks", "subnetworks", "firewalls", "routers", "disks", "nodes", "serviceAccounts"}
PRODUCTS = {
    "GOOGLE_DATAPROC_CUSTOM_ENDPOINT": "dataproc.googleapis.com/v1/",  # batches, which only the guard lists
    **{item.variable: item.base.removeprefix("https://") for item in terraform.products()},
}
"""Roots of the APIs by the variables that replace them."""
SETTINGS = f"""\
# The settings of a test: what is written here stays as it is, down to the last space.
config:
  pulumi:disable-default-providers: ["*"]
  gcp:project: {PROJECT}
  storage:bucketName: {BUCKET}
  storage:location: us-east5
  storage:serviceAccountUsers: ["user:{OWNER}"]
  network:cloudNat: true  # a router, too
  data:snapshot:   corpus
  data:sizeGib: 1000
  tpu:bundle: "{BUNDLE}"

  tpu:slices:
    - {{name: one, acceleratorType: v6e-1, zones: [us-east5-b], spot: true}}
    - {{name: two, acceleratorType: v6e-8, zones: [us-east5-a], spot: true}}
"""


class Lab(Emulated):
    """The cloud in a thread, the project and its state in a folder."""

    def __init__(
        self,
        folder: Path,
        rate: float = 200.0,
        apis: tuple[str, ...] = NEW_PROJECT,
        lags: Lags = NO_LAGS,
        tree: Path = ROOT,
        people: Mapping[str, Any] | None = None,
        spark_python: str = "",
        currency: str = "USD",
    ) -> None:
        """`rate`: of Google's clock; `apis`: switched on from the start; `lags`, `people`, `spark_python`
        and `currency`: as CloudConfig has them; `tree`: whose program runs.
        """
        self.tree = tree
        self.folder, self.root = folder, folder / "project"
        self._kill_at, self._victim, self.answered, self.killed_at = 0, 0, 0, ""
        self.kubernetes: dict[str, list[dict[str, Any]]] = {}  # path → objects that the control plane lists
        super().__init__(
            folder, PROJECT, clock_rate=rate, enabled_apis=apis, people=dict(people or {}), lags=lags,
            currency=currency, spark_python=spark_python,
            builder={"PATH": os.environ["PATH"]} if spark_python else {},
        )  # fmt: skip
        image = folder / "corpus.img"
        image.write_bytes(b"data")
        add_snapshot(self.cloud.world, "corpus", image, 50)
        self.environment = self._environment(self.token_of(lifetime_s=1e9))
        self._write_project()

    # Commands

    def run(self, *line: str, fine: bool | None = True) -> str:
        """Return the output of a command, which must succeed or fail as `fine` has it; None: either."""
        done = subprocess.run(
            line, cwd=self.tree, env=self.environment, text=True, check=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=HANG_S,
        )  # fmt: skip
        assert fine in (None, done.returncode == 0), f"{' '.join(line)}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def pulumi(self, layer: str, *arguments: str, fine: bool = True) -> str:
        """Return the output of a command of the CLI."""
        return self.run(*self.line(layer, *arguments), fine=fine)

    def line(self, layer: str, *arguments: str) -> list[str]:
        """A command of the CLI."""
        place = str(self.root / directory(layer, self.tree))
        return ["pulumi", "-C", place, "--non-interactive", *arguments]

    def infra(self, *arguments: str, fine: bool = True) -> str:
        """Return the output of `tpu infra` in the lab's project."""
        return self.tpu("infra", *arguments, fine=fine)

    def tpu(self, *arguments: str, fine: bool = True) -> str:
        """Return the output of `tpu` in the lab's project."""
        return self.run(sys.executable, "-m", "tests.infra.lab", str(self.root), *arguments, fine=fine)

    def state(self, layer: str) -> dict[str, Any]:
        """The layer's deployment."""
        state: dict[str, Any] = json.loads(self.pulumi(layer, "stack", "export", "-s", "dev"))
        return state["deployment"]  # type: ignore[no-any-return]

    def locked(self, layer: str) -> bool:
        """Return True if the layer's stack is locked."""
        folder = self.folder / "state/.pulumi/locks/organization" / layer / "dev"
        return any(path.suffix == ".json" for path in folder.glob("*"))

    # Killing

    def killed(self, line: list[str], at: int) -> str:
        """Run a command; once its `at`th request is done at Google, and before it hears of that, SIGKILL it
        and all its children. At 0 its first request is never done. The request; empty where it ended before.
        """
        self.answered, self.killed_at = 0, ""
        with (self.folder / "killed.log").open("w") as log:
            process = subprocess.Popen(
                line, cwd=self.tree, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            self._victim, self._kill_at = process.pid, at or -1
            try:
                status = process.wait(HANG_S)
            finally:
                self._kill_at = 0
        if self.killed_at:
            assert status == -signal.SIGKILL, f"it wasn't killed: {status}"
        return self.killed_at

    def count(self, line: list[str]) -> int:
        """Return the number of requests that a command sends."""
        self.answered = 0
        self.run(*line)
        return self.answered

    # The cloud

    def request(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """A request of the owner's to HOST/PATH."""
        host, _, rest = path.partition("/")
        headers = {"Authorization": f"Bearer {self.environment['GOOGLE_OAUTH_ACCESS_TOKEN']}"}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        return requests.request(
            method, f"{self.urls[host]}/{rest}", params=query, data=data, headers=headers, timeout=HANG_S
        )

    def living(self) -> set[str]:
        """The truth: ids of all at Google that our layers make, but for what policies hold."""
        directory = self.cloud.world.directory
        names = {name for name in directory if name.split("/")[-2] in KINDS}
        return names | self._buckets() | self._granted()

    def _buckets(self) -> set[str]:
        answer = self.request("GET", "storage.googleapis.com/storage/v1/b", project=PROJECT)
        return {item["name"] for item in answer.json().get("items", ())}

    def _granted(self) -> set[str]:
        """Return the grants to the hosts' account and on it, as Pulumi's ids."""
        account = f"projects/{PROJECT}/serviceAccounts/{ACCOUNT}"
        policies = {
            PROJECT: ("POST", f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}:getIamPolicy"),
            **{
                f"b/{bucket}": ("GET", f"storage.googleapis.com/storage/v1/b/{bucket}/iam")
                for bucket in self._buckets()
            },
            account: ("POST", f"iam.googleapis.com/v1/{account}:getIamPolicy"),
        }
        result = set()
        for scope, (method, path) in policies.items():
            answer = self.request(method, path)
            for binding in answer.json().get("bindings", ()) if answer.ok else ():
                for member in binding["members"]:
                    if scope == account or member == f"serviceAccount:{ACCOUNT}":
                        result.add(f"{scope}/{binding['role']}/{member}")
        return result

    async def _open(self, config: CloudConfig) -> None:
        await super()._open(config)
        hosts = (path.partition("/")[0] for path in PRODUCTS.values())
        self.urls = {host: await self._door(host) for host in hosts}
        self.control_plane = url(await self.served(self._listed))

    async def _listed(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": self.kubernetes.get(request.path, [])})

    async def _door(self, host: str) -> str:
        """A port that is Google's of that name, for clients that can't be given Google's names."""

        async def handle(request: web.Request) -> web.StreamResponse:
            if self._kill_at == -1 and not self.killed_at:
                self._kill(f"before {request.method} {host}{request.path}")
                return web.Response(status=499)
            answer = await self.forward(request, host)
            self.answered += 1
            if self._kill_at and self.answered == self._kill_at:
                self._kill(f"after {request.method} {host}{request.path}")
            return answer

        return url(await self.served(handle))

    def _kill(self, request: str) -> None:
        self.killed_at = request
        kill_tree(self._victim)

    # The project

    def _environment(self, token: str) -> dict[str, str]:
        endpoints = {}
        for variable, path in PRODUCTS.items():
            host, _, rest = path.partition("/")
            endpoints[variable] = f"{self.urls[host]}/{rest}"
        return {
            **os.environ,
            **endpoints,
            "TPU_CONTROL_PLANE_URL": self.control_plane,
            "PATH": f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(self.tree),
            "PULUMI_HOME": str(self.folder / "home"),
            "PULUMI_BACKEND_URL": f"file://{self.folder / 'state'}",
            "PULUMI_CONFIG_PASSPHRASE": "test",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "GOOGLE_OAUTH_ACCESS_TOKEN": token,
        }

    def _write_project(self) -> None:
        install(self.folder / "home")
        (self.folder / "state").mkdir()
        self.root.mkdir()
        self.settings = self.root / "Pulumi.dev.yaml"
        self.settings.write_text(SETTINGS)
        for path in (self.tree / "Pulumi.yaml", *self.tree.glob("infra/layers/*/Pulumi.yaml")):
            place = self.root / path.relative_to(self.tree)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "main": str(self.tree)}))

    def publish(self, bucket: str = BUCKET, script: str = startup.script_sha256()) -> None:
        """The names of a bundle's manifest and script, which are all that the program asks for."""
        path = f"storage.googleapis.com/upload/storage/v1/b/{bucket}/o"
        for name in (bundle_manifest(BUNDLE), bundle_blob(script)):
            answer = self.request("POST", path, b"", uploadType="media", name=name)
            assert answer.ok, answer.text


def kill_tree(pid: int) -> None:
    """SIGKILL for a process and all that came of it; stopped first, so that none gets away."""
    result = [pid]
    for item in result:
        os.kill(item, signal.SIGSTOP)
        for task in Path(f"/proc/{item}/task").glob("*/children"):
            result += map(int, task.read_text().split())
    for item in reversed(result):
        os.kill(item, signal.SIGKILL)


def main(arguments: list[str]) -> int:
    """Run `tpu` in another project folder."""
    from cli.__main__ import main as tpu
    from infra.engine import updates
    from infra.engine.recovery import settle

    root, *rest = arguments
    # Google's clock here is faster: what takes it a minute takes a third of a second.
    updates.PATIENCE = settle.Patience(creation_s=1.0, deletion_s=2.0, poll_s=0.2)
    return tpu(rest, Path(root))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
