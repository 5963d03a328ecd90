"""Programs of Pulumi that make objects on the lab's cluster, and a stack in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rehearsal.kubernetes.plane.api import Object
from rehearsal.providers.gcp.install import install
from tests.limits import HANG_S
from tests.rehearsal.kubernetes.lab import MACHINE

ROOT = Path(__file__).parents[3]
# What the objects file holds; each is declared after those that it names.
PROGRAM = """
import asyncio, json, os
from pathlib import Path
import pulumi, pulumi_kubernetes as kubernetes

def later(value):
    known, result = asyncio.Future(), asyncio.Future()
    known.set_result(not pulumi.runtime.is_dry_run())
    result.set_result(value)
    return pulumi.Output(set(), result, known)

settings = json.loads(Path("settings.json").read_text())
if os.environ.get("LATER"):
    settings["kubeconfig"] = later(settings["kubeconfig"])
provider = kubernetes.Provider("cluster", **settings)
made = {}
for name, one in json.loads(Path("objects.json").read_text()).items():
    after = [made[each] for each in one.pop("after", ())]
    timeouts = pulumi.CustomTimeouts(**one.pop("timeouts", {}))
    version = one["apiVersion"] if "/" in one["apiVersion"] else "core/" + one["apiVersion"]
    opts = pulumi.ResourceOptions(provider=provider, depends_on=after, custom_timeouts=timeouts)
    made[name] = pulumi.CustomResource(f"kubernetes:{version}:{one['kind']}", name, one, opts)
"""
TYPED = """
import json
from pathlib import Path
import pulumi, pulumi_kubernetes as kubernetes

config = pulumi.Config()
settings = json.loads(Path("settings.json").read_text())
settings["kubeconfig"] = pulumi.Output.secret(settings["kubeconfig"])
provider = kubernetes.Provider("cluster", **settings)

def opts(*after):
    return pulumi.ResourceOptions(provider=provider, depends_on=after)

space = kubernetes.core.v1.Namespace("life", metadata={"name": "life"}, opts=opts())
kind = kubernetes.apiextensions.v1.CustomResourceDefinition(
    "walls", opts=opts(), metadata={"name": "walls.example.com"},
    spec={
        "group": "example.com", "scope": "Cluster",
        "names": {"plural": "walls", "singular": "wall", "kind": "Wall"},
        "versions": [{
            "name": "v1", "served": True, "storage": True,
            "schema": {"open_apiv3_schema": {"type": "object", "properties": {
                "spec": {"type": "object", "x_kubernetes_preserve_unknown_fields": True}}}},
        }],
    },
)
wall = kubernetes.apiextensions.CustomResource(
    "wall", api_version="example.com/v1", kind="Wall", metadata={"name": "wall"}, spec={"height": 3},
    opts=opts(),  # so it is retried until its kind is there
)
settings = kubernetes.core.v1.ConfigMap(
    "settings", metadata={"name": config.get("settings") or "settings", "namespace": "life"},
    data={"colour": "blue"}, opts=opts(space),
)
kubernetes.core.v1.ConfigMap(
    "named", metadata={"name": "named", "namespace": space.metadata.name}, data={}, opts=opts()
)
hidden = kubernetes.core.v1.Secret(
    "hidden", metadata={"name": "hidden", "namespace": "life"}, string_data={"word": "open sesame"},
    opts=opts(space),
)
account = kubernetes.core.v1.ServiceAccount(
    "account", metadata={"name": "reader", "namespace": "life"}, opts=opts(space)
)
role = kubernetes.rbac.v1.ClusterRole(
    "role", metadata={"name": "life-reader"}, opts=opts(),
    rules=[{"api_groups": [""], "resources": ["pods"], "verbs": ["get"]}],
)
kubernetes.rbac.v1.ClusterRoleBinding(
    "binding", metadata={"name": "life-reader"}, opts=opts(),
    role_ref={"api_group": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role.metadata.name},
    subjects=[{"kind": "ServiceAccount", "name": account.metadata.name, "namespace": "life"}],
)
kubernetes.apps.v1.Deployment(
    "sleeper", metadata={"name": "sleeper", "namespace": "life"}, opts=opts(space),
    spec={
        "replicas": config.get_int("replicas") or 1,
        "selector": {"match_labels": {"app": "sleeper"}},
        "template": {
            "metadata": {"labels": {"app": "sleeper"}},
            "spec": {"containers": [{
                "name": "sleep", "image": "IMAGE", "command": ["sleep", "1000"],
                "resources": {"requests": {"cpu": "0.1", "memory": "1048576"}},
            }]},
        },
    },
)
""".replace("IMAGE", MACHINE)


@dataclass
class Stack:
    """A project in a folder of its own, with a state in a file beside it."""

    folder: Path
    environment: dict[str, str]
    settings: dict[str, Any] = field(default_factory=dict)

    def write(self, objects: Mapping[str, Object], program: str = PROGRAM) -> None:
        (self.folder / "__main__.py").write_text(program)
        (self.folder / "settings.json").write_text(json.dumps(self.settings))
        (self.folder / "objects.json").write_text(json.dumps(objects))

    def line(self, *arguments: str) -> list[str]:
        return ["pulumi", "--non-interactive", *arguments]

    def pulumi(self, *arguments: str, fine: bool = True, **more: str) -> str:
        """Return the output of a command of the CLI."""
        done = subprocess.run(
            self.line(*arguments), cwd=self.folder, env={**self.environment, **more}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=HANG_S, check=False,
        )  # fmt: skip
        assert (done.returncode == 0) is fine, done.stdout
        assert "Traceback" not in done.stdout
        return done.stdout

    def up(self, *arguments: str, fine: bool = True) -> str:
        return self.pulumi("up", "--yes", "--skip-preview", *arguments, fine=fine)

    def destroy(self, fine: bool = True) -> str:
        return self.pulumi("destroy", "--yes", "--skip-preview", fine=fine)


def made(folder: Path, kubeconfig: Path) -> Stack:
    """A new one; `folder` has its program, its state and the plugin."""
    place = folder / "program"
    place.mkdir()
    (folder / "state").mkdir()
    (place / "Pulumi.yaml").write_text("name: demo\nruntime: python\n")
    install(folder / "home", ["kubernetes"])
    environment = {
        **os.environ,
        "PATH": f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PULUMI_HOME": str(folder / "home"),
        "PULUMI_BACKEND_URL": f"file://{folder / 'state'}",
        "PULUMI_CONFIG_PASSPHRASE": "test",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
    }
    stack = Stack(place, environment, {"kubeconfig": kubeconfig.read_text()})
    stack.pulumi("stack", "init", "dev")
    return stack
