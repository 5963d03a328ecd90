"""The boot of a Slurm machine: the script as a whole, and on a machine that boots with its loader."""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from infra.layers.slurm import startup
from infra.layers.slurm.program import archive_of
from infra.layers.tpu.startup import loader
from infra.publish import machines
from infra.publish.bundle import Bundle
from slurm.logs import KEEPER
from tests.infra.layers.slurm.cluster import settings
from tests.infra.layers.tpu.boot.lab import Host, failed, ready, running_lab, until
from tests.infra.layers.tpu.boot.metadata import Metadata
from tests.infra.layers.tpu.boot.storage import BUCKET, client_of, emulated_storage
from workload.host import events, unit

MACHINE = Path(str(resources.files(startup) / "machine.sh"))
PROGRAM = """\
import pathlib, sys, yaml
assert sys.argv[1] == "boot"
pathlib.Path("/run/tpu/role").write_text(f"{sys.argv[2]} {yaml.__version__}")
"""


def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    rendered = tmp_path / "startup.sh"
    rendered.write_text(startup.render())
    done = subprocess.run(["shellcheck", rendered, MACHINE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_script_runs_the_stages_in_their_order() -> None:
    script = startup.render()
    assert tuple(re.findall(r"^run_stage (\w+) ", script, re.MULTILINE)) == startup.STAGES
    assert all(f"\nstage_{stage}() {{\n" in script for stage in startup.STAGES)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return machines.build(startup.BUNDLE, tmp_path_factory.mktemp("bundle"))


def test_the_same_tree_and_locks_give_the_same_bundle(bundle: Bundle, tmp_path: Path) -> None:
    assert machines.build(startup.BUNDLE, tmp_path).id == bundle.id
    paths = {file.path for file in bundle.files}
    assert {
        "startup.sh",
        "python.tar.gz",
        "uv",
        "requirements.txt",
        "slurm.tar.gz",
        "accounting.tar.gz",
    } < paths
    assert any(path.startswith("wheels/") for path in paths)
    assert b"  startup.sh\n" in bundle.manifest, "the loader looks for it"


@pytest.fixture
def make_machine(tmp_path: Path, bundle: Bundle) -> Iterator[Callable[..., Host]]:
    """Return a maker of machines with given metadata; their power is cut at the end."""
    with emulated_storage(tmp_path) as url:
        bucket = client_of(url).bucket(BUCKET)
        bucket.blob(f"bundles/manifests/{bundle.id}").upload_from_string(bundle.manifest)
        for file in bundle.files:
            bucket.blob(f"bundles/blobs/{file.sha256}").upload_from_filename(str(file.source))
        bucket.blob("slurm-dev/programs/1.zip").upload_from_string(program := _program())
        metadata = Metadata({"instance/id": "4711", "project/project-id": "lab"})
        values = {
            "tpu-slice": "slurm-dev-controller", "tpu-bucket": BUCKET, "tpu-bundle": bundle.id,
            "slurm-role": "controller", "enable-guest-attributes": "TRUE",
            "slurm-program": f"slurm-dev/programs/1.zip {hashlib.sha256(program).hexdigest()}",
        }  # fmt: skip
        hosts: list[Host] = []
        with running_lab(tmp_path, metadata, url) as lab:

            def make(**changes: str) -> Host:
                for key, value in (values | changes).items():
                    metadata.set(key.replace("_", "-"), value)
                hosts.append(Host(lab, loader()))
                return hosts[-1]

            yield make
            for host in hosts:
                host.cut_power()


def _program() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("slurm/__init__.py", "")
        archive.writestr("slurm/__main__.py", PROGRAM)
    return packed.getvalue()


def test_a_machine_installs_slurm_and_runs_its_program_at_every_boot(
    make_machine: Callable[..., Host],
) -> None:
    host = make_machine()
    status = ready(host)
    assert [stage["name"] for stage in status["stages"]] == list(startup.STAGES)
    assert (host.files / "run/tpu/role").read_text().startswith("controller ")
    assert "slurm-wlm 22.05.8" in host.run("slurmctld", "-V")
    assert host.run("stat", "--format=%U %a", "/etc/munge").strip() == "munge 700"
    assert host.run("id", "--user", "slurm").strip() == "64030"
    host.run("getent", "passwd", "_rpc", "statd")  # rpcbind drops its rights to the first, or ends
    # The machine's own copy is written first, which `ready` reads.
    until(lambda: host.lab.metadata.reports()[-1]["state"] == "ready", host)
    assert host.run("readlink", "/sbin").strip() == "usr/sbin", "a link of the image stays a link"
    host.power_off()
    again = ready(host)
    assert "are there already" in next(s["log_tail"] for s in again["stages"] if s["name"] == "packages")


def test_the_machine_sends_what_its_daemon_reports(
    make_machine: Callable[..., Host],
) -> None:
    """By the real program, with the packages that the machine has, as boot.py starts it."""
    host = make_machine(tpu_zone="us-east5-b")
    ready(host)
    with zipfile.ZipFile(archive_of(settings())) as archive:
        archive.extractall(host.files / "opt/slurm/real")
    text = unit.logs_unit("slurm logs controller", "/opt/slurm/real")
    (host.files / f"etc/systemd/system/{unit.LOGS}").write_text(text)
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "restart", unit.LOGS)
    line = events.line("slurm-queue", {"partition": "tpu", "down": 4})
    host.run("systemd-run", f"--unit={KEEPER}", "--wait", "echo", line)

    def reports() -> list[dict[str, Any]]:
        return [entry["jsonPayload"] for entry in host.lab.front.logged if "jsonPayload" in entry]

    until(lambda: any(report["event"] == "slurm-queue" for report in reports()), host)
    (report,) = (report for report in reports() if report["event"] == "slurm-queue")
    assert (report["partition"], report["down"]) == ("tpu", 4)
    assert {entry["labels"]["node"] for entry in host.lab.front.logged} == {"slurm-dev-controller"}


def test_another_program_than_the_metadata_names_is_not_run(make_machine: Callable[..., Host]) -> None:
    host = make_machine(slurm_program=f"slurm-dev/programs/1.zip {'0' * 64}")
    assert "doesn't match its sha256" in failed(host, "program")["log_tail"]
