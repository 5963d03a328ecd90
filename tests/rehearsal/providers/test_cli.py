"""The real Pulumi CLI with the stand-in as its plugin: a program's whole life, about 40 s."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from rehearsal.providers.gcp.__main__ import main
from rehearsal.providers.gcp.install import PACKAGES, install, is_standin
from tests.limits import HANG_S
from tests.rehearsal.providers.small_cloud import SmallCloud, small_cloud

ROOT = Path(__file__).parents[3]
PROGRAM = """
import pulumi
import pulumi_gcp as gcp

config = pulumi.Config()
provider = gcp.Provider("gcp", project="demo", zone="us-east5-b", default_labels={"env": "dev"})
with_provider = pulumi.ResourceOptions(provider=provider)
gcp.projects.Service("tpu", service="tpu.googleapis.com", disable_on_destroy=False, opts=with_provider)
network = gcp.compute.Network("net", auto_create_subnetworks=False, mtu=8896, opts=with_provider)
subnet = gcp.compute.Subnetwork(
    "sub", name="sub", network=network.id, region="us-east5", ip_cidr_range="10.0.0.0/20", opts=with_provider
)
router = gcp.compute.Router("router", network=network.id, region="us-east5", opts=with_provider)
gcp.compute.RouterNat(
    "nat", router=router.name, region="us-east5", nat_ip_allocate_option="AUTO_ONLY",
    source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES", opts=with_provider,
)
ssh = {"protocol": "tcp", "ports": ["22"]}
gcp.compute.Firewall("ssh", network=network.id, allows=[ssh], opts=with_provider)
disk = gcp.compute.Disk("data", name="data", size=10, type="hyperdisk-ml", opts=with_provider)
bucket = gcp.storage.Bucket(
    "bucket", name="demo-bucket", location="US-EAST5", versioning={"enabled": True}, opts=with_provider
)
gcp.storage.BucketObject(
    "object", bucket=bucket.name, name="a/b.txt", source=pulumi.StringAsset("hello"), opts=with_provider
)
account = gcp.serviceaccount.Account("sa", account_id="workers", opts=with_provider)
gcp.storage.BucketIAMMember(
    "user", bucket=bucket.name, role="roles/storage.objectUser", member=account.member, opts=with_provider
)
gcp.projects.IAMMember(
    "writer", project="demo", role="roles/logging.logWriter", member=account.member, opts=with_provider
)
vm = gcp.tpu.V2Vm(
    "vm", name="vm", runtime_version="v2-alpha-tpuv6e", accelerator_type="v6e-4",
    description=config.get("description") or "first",
    network_config={"network": network.id, "subnetwork": subnet.id},
    data_disks=[{"source_disk": disk.id, "mode": "READ_ONLY"}],
    metadata={"startup-script": pulumi.Output.secret("#!/bin/sh")}, opts=with_provider,
)
found = gcp.compute.get_network_output(name=network.name, opts=pulumi.InvokeOptions(provider=provider))
pulumi.export("network", network.id)
pulumi.export("found", found.self_link)
pulumi.export("state", vm.state)
pulumi.export("address", vm.network_endpoints[0].ip_address)
"""


@dataclass
class Stack:
    """A project in a folder of its own, with a state in a file beside it."""

    folder: Path
    environment: dict[str, str]

    def pulumi(self, *arguments: str, succeeds: bool = True) -> str:
        """Run a command of the CLI; returns what it printed."""
        done = subprocess.run(
            ["pulumi", "--non-interactive", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert (done.returncode == 0) is succeeds, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def cloud() -> Iterator[SmallCloud]:
    with small_cloud() as running:
        yield running


@pytest.fixture
def stack(tmp_path: Path, cloud: SmallCloud) -> Stack:
    folder, home, state = tmp_path / "program", tmp_path / "home", tmp_path / "state"
    folder.mkdir()
    state.mkdir()
    (folder / "Pulumi.yaml").write_text("name: demo\nruntime: python\n")
    (folder / "__main__.py").write_text(PROGRAM)
    install(home, ["gcp"])
    made = Stack(
        folder,
        {
            **os.environ,
            **cloud.environment(),
            "PATH": f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PULUMI_HOME": str(home),
            "PULUMI_BACKEND_URL": f"file://{state}",
            "PULUMI_CONFIG_PASSPHRASE": "test",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "GOOGLE_OAUTH_ACCESS_TOKEN": "token",
        },
    )
    made.pulumi("stack", "init", "dev")
    return made


@pytest.mark.prove  # `make rehearse` brings four programs up, changes them and takes them down
def test_a_programs_life(stack: Stack, cloud: SmallCloud) -> None:
    stack.pulumi("up", "--yes")
    outputs = json.loads(stack.pulumi("stack", "output", "--json"))
    assert outputs["network"].startswith("projects/demo/global/networks/net-")
    assert outputs["found"].endswith(outputs["network"])
    assert (outputs["state"], outputs["address"]) == ("READY", "10.0.0.2")
    assert cloud.resources["tpu/projects/demo/locations/us-east5-b/nodes/vm"]["labels"] == {
        "env": "dev",
        "goog-pulumi-provisioned": "true",
    }
    assert "#!/bin/sh" not in stack.pulumi("stack", "export")

    cloud.changes.clear()
    stack.pulumi("up", "--yes", "--skip-preview", "--expect-no-changes")
    stack.pulumi("refresh", "--yes", "--skip-preview", "--expect-no-changes")
    stack.pulumi("preview", "--expect-no-changes")
    assert cloud.changes == []

    stack.pulumi("config", "set", "description", "second")
    stack.pulumi("up", "--yes", "--skip-preview")
    assert cloud.changes == ["PATCH tpu/projects/demo/locations/us-east5-b/nodes/vm"]

    del cloud.resources["tpu/projects/demo/locations/us-east5-b/nodes/vm"]
    assert "deleted" in stack.pulumi("refresh", "--yes", "--skip-preview")
    stack.pulumi("destroy", "--yes", "--skip-preview")
    assert cloud.resources == {}


def test_a_program_asks_for_what_the_standin_does_not_know(stack: Stack, cloud: SmallCloud) -> None:
    (stack.folder / "__main__.py").write_text(
        'import pulumi_gcp as gcp\ngcp.storage.Bucket("b", location="US", project="p", website={})\n'
    )
    printed = stack.pulumi("preview", succeeds=False)
    assert "the stand-in doesn't know the property 'website'" in printed
    assert "Traceback" not in printed
    assert cloud.changes == []


ENGINE = """
import os, subprocess, sys, time
line = [sys.executable, "-m", "rehearsal.providers.gcp", "serve", "gcp"]
plugin = subprocess.Popen(line, stdout=subprocess.PIPE)
if sys.argv[1] == "serving":
    plugin.stdout.readline()
    time.sleep(2)
    assert plugin.poll() is None, "it ended while its engine lived"
print(plugin.pid, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("moment", ["starting", "serving"])
def test_it_ends_with_the_engine_that_started_it(moment: str) -> None:
    engine = [sys.executable, "-c", ENGINE, moment]
    ended = subprocess.run(engine, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=HANG_S)
    plugin = Path("/proc") / ended.stdout.strip()
    for _ in range(6000):
        if not plugin.exists() or "\nState:\tZ" in (plugin / "status").read_text():
            return
        time.sleep(0.1)
    os.kill(int(plugin.name), signal.SIGKILL)
    raise AssertionError("it continues without its engine")


@pytest.mark.parametrize("name", PACKAGES)
def test_install_names_the_sdks_version_and_leaves_an_official_plugin_alone(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["install", "--pulumi-home", str(tmp_path)]) == 0
    executable = PACKAGES[name].place(tmp_path)
    assert executable.parent.name == f"resource-{name}-v{version(f'pulumi-{name}')}"
    assert is_standin(executable)
    assert os.access(executable, os.X_OK)
    assert sys.executable in executable.read_text()
    executable.write_bytes(b"\x7fELF official")
    assert main(["install", "--pulumi-home", str(tmp_path)]) == 1
    assert f"the official {name} plugin is installed there" in capsys.readouterr().err
    others = [other for other in PACKAGES if other != name]
    assert main(["install", "--pulumi-home", str(tmp_path), *others]) == 0
    assert executable.read_bytes() == b"\x7fELF official"
