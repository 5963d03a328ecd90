"""A lab with a stack that Pulumi works on: the real CLI, the program, the plugin (the stand-in).

A creation gives up after seconds where the program waits an hour, and the layers below have outputs without
ever having been up.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fleet.environment import Environment
from fleet.zones import Answer, NodeRequest, Verb, Zones
from infra.engine.named import StackState, create, read_stack
from infra.engine.settings import from_file
from infra.settings.sources import ROOT
from infra.slices.nodes import nodes
from rehearsal.providers.gcp.install import install
from tests.fleet.lab import ACCOUNT, BUCKET, CONFIG, CONTROLLERS, FLEET, NETWORK, SUBNETS, Lab

# The program as it is, but for its patience with Google.
PROGRAM = """
import os
import pulumi
from infra.layers.tpu import v2_vm

patience = os.environ["LAB_PATIENCE"]
v2_vm.timeouts = lambda _: pulumi.CustomTimeouts(create=patience, update=patience, delete=patience)

from infra.engine.program import run

run()
"""
NAMED: dict[str, Any] = {"acceleratorType": "v6e-8", "spot": True}
SLICES = [
    {**NAMED, "name": "train", "zones": ["us-east5-b"]},
    {**NAMED, "name": "eval", "zones": ["us-central1-b"]},
    {**FLEET, "zones": ["us-east5-a"], "count": 1},
]
OUTPUTS: dict[str, dict[str, Any]] = {
    "storage": {
        "bucketName": BUCKET,
        "controllerBucketName": CONTROLLERS,
        "stepsBucketName": f"{BUCKET}-steps",
        "serviceAccountEmail": ACCOUNT,
    },
    "network": {"networkId": NETWORK, "subnetIds": SUBNETS, "mtu": 8896},
}


class StackLab(Lab):
    """The stack in a folder: two named slices and a fleet of one."""

    def __init__(self, folder: Path, patience: str = "20s") -> None:
        """`patience`: until Pulumi gives one request up."""
        super().__init__(folder, rate=20.0)
        self.root = folder / "project"
        self.environment |= {
            "PATH": f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PULUMI_HOME": str(folder / "home"),
            "PULUMI_BACKEND_URL": f"file://{folder / 'state'}",
            "PULUMI_CONFIG_PASSPHRASE": "test",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "GOOGLE_TPU_V2_CUSTOM_ENDPOINT": f"{self.url}/tpu.googleapis.com/v2alpha1/",
            "GOOGLE_STORAGE_CUSTOM_ENDPOINT": f"{self.url}/storage.googleapis.com/storage/v1/",
            "LAB_PATIENCE": patience,
        }
        self._write_project()

    def pulumi(self, *arguments: str, layer: str = ".") -> str:
        """Return the output of a command of the CLI."""
        line = ["pulumi", "-C", str(self.root / layer), "--non-interactive", *arguments]
        done = subprocess.run(
            line, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def opened(self) -> Environment:
        """The environment as a command finds it."""
        settings = from_file("dev", self.root)
        return Environment(settings, nodes(settings), self.asking(), self.read())

    def read(self) -> StackState:
        """Read the stack."""
        return read_stack("dev", self.root)

    def _write_project(self) -> None:
        """The projects' files, and stacks of the layers below that have outputs."""
        install(self.folder / "home")
        (self.folder / "state").mkdir()
        program = self.folder / "program"
        program.mkdir()
        (program / "__main__.py").write_text(PROGRAM)
        for layer in ("tpu", *OUTPUTS):
            place = self.root if layer == "tpu" else self.root / "infra" / layer
            place.mkdir(parents=True)
            project = {"name": layer, "runtime": "python", "main": str(program)}
            (place / "Pulumi.yaml").write_text(yaml.safe_dump(project))
            config = {**CONFIG, "tpu:slices": SLICES}
            (place / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": config}))
            self.pulumi("stack", "init", "dev", layer=str(place.relative_to(self.root)))
        for layer, outputs in OUTPUTS.items():
            self._import(layer, outputs)

    def _import(self, layer: str, outputs: Mapping[str, Any]) -> None:
        place = f"infra/{layer}"
        state = json.loads(self.pulumi("stack", "export", layer=place))
        kind = "pulumi:pulumi:Stack"
        urn = f"urn:pulumi:dev::{layer}::{kind}::{layer}-dev"
        state["deployment"]["resources"] = [{"urn": urn, "custom": False, "type": kind, "outputs": outputs}]
        path = self.folder / f"{layer}.json"
        path.write_text(json.dumps(state))
        self.pulumi("stack", "import", "--file", str(path), layer=place)


class Here:
    """Deletions through the API; creations by Pulumi, in this process, while a step waits."""

    def __init__(self, lab: StackLab, opened: Environment) -> None:
        self._root = lab.root
        self._zones = Zones(
            opened.google, opened.owner, opened.body, lab.now_s, opened.limits.heartbeat_timeout_s
        )
        self._named: list[Answer] = []

    def begin(self, request: NodeRequest) -> None:
        """See `zones.Actor`."""
        if request.verb is Verb.CREATE and request.node.member is None:
            outcome = create("dev", [request.node.name], self._root)
            self._named.append(Answer(request, outcome[request.node.name]))
        else:
            self._zones.begin(request)

    def ended(self) -> list[Answer]:
        """See `zones.Actor`."""
        result, self._named = self._named, []
        return [*self._zones.ended(), *result]
