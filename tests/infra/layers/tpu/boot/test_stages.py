"""Stages of the boot script in a plain bash: functions of (metadata, folder), without a machine."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import pytest

import infra.layers.tpu.startup as startup
from tests.limits import HANG_S

PARTS = Path(str(resources.files(startup) / "parts"))
ENDPOINTS = "a:1:10.0.0.4,b:2:10.0.0.5,c:3:10.0.0.6,d:4:10.0.0.7"
FOUR = {
    "tpu-bucket": "b", "tpu-slice": "tpu-dev", "tpu-zone": "us-east5-b", "tpu-workers": "4",
    "accelerator-type": "v6e-16", "agent-worker-number": "2",
    "worker-network-endpoints": ENDPOINTS,
    "tpu-metadata-timeout-s": "1",
}  # fmt: skip
ONE = {**FOUR, "tpu-workers": "1", "agent-worker-number": "0", "worker-network-endpoints": "a:1:10.0.0.9"}


def run(stage: str, folder: Path, stubs: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run a stage after the prelude, with functions replaced by `stubs`."""
    sources = [(PARTS / f"{part}.sh").read_text() for part in ("prelude", stage)]
    script = "\n".join([*sources, f"RUN={shlex.quote(str(folder))}", stubs, f"stage_{stage}"])
    if path:
        script = script.replace("/opt/tpu", path).replace("/opt/training", f"{path}/training")
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=HANG_S)


def identity(folder: Path, attributes: Mapping[str, str | None]) -> subprocess.CompletedProcess[str]:
    """Run `identity` with a metadata server that has just these attributes."""
    cases = "\n".join(
        f"instance/attributes/{key}) printf %s {shlex.quote(value)} ;;"
        for key, value in attributes.items()
        if value is not None
    )
    stub = (
        f"metadata() {{ case $1 in instance/id) echo 4711 ;;\n{cases}\n*) return 1 ;; esac; }}\nSECONDS=100"
    )
    return run("identity", folder, stub)


def remembered(folder: Path) -> dict[str, str]:
    """Variables that later stages get."""
    text = (folder / "node").read_text()
    shown = subprocess.run(["bash", "-c", f"{text}\nenv -0"], capture_output=True, text=True, check=True)
    values = dict(entry.split("=", 1) for entry in shown.stdout.split("\0") if "=" in entry)
    return {
        line.split()[1].split("=")[0]: values[line.split()[1].split("=")[0]] for line in text.splitlines()
    }


def test_a_worker_remembers_its_number_and_worker_0_as_the_coordinator(tmp_path: Path) -> None:
    done = identity(tmp_path, {**FOUR, "tpu-steps-bucket": "b-steps", "tpu-member": "17"})
    assert done.returncode == 0, done.stderr
    assert remembered(tmp_path) == {
        "INSTANCE_ID": "4711", "CHECKPOINT_BUCKET": "b", "STEPS_BUCKET": "b-steps", "TPU_NAME": "tpu-dev",
        "TPU_ZONE": "us-east5-b", "TPU_MEMBER": "17", "WORKER_COUNT": "4", "ACCELERATOR_TYPE": "v6e-16",
        "WORKER_ID": "2", "COORDINATOR": "10.0.0.4",
    }  # fmt: skip


@pytest.mark.parametrize("worker", ["0", "1", "3"])
def test_every_worker_of_a_slice_starts(worker: str, tmp_path: Path) -> None:
    assert identity(tmp_path, {**FOUR, "agent-worker-number": worker}).returncode == 0
    assert remembered(tmp_path)["WORKER_ID"] == worker


def test_a_slice_of_one_host_needs_no_other(tmp_path: Path) -> None:
    assert identity(tmp_path, ONE).returncode == 0
    assert remembered(tmp_path)["COORDINATOR"] == "10.0.0.9"
    assert not {"STEPS_BUCKET", "TPU_MEMBER", "CHECKPOINT_FOLDER"} & remembered(tmp_path).keys()


@pytest.mark.parametrize(("change", "message"), [
    ({"agent-worker-number": "4"}, "agent-worker-number is 4, but tpu-workers is 4"),
    ({"agent-worker-number": "5"}, "agent-worker-number is 5, but tpu-workers is 4"),
    ({"agent-worker-number": "-1"}, "agent-worker-number is '-1', not a number"),
    ({"agent-worker-number": "02"}, "agent-worker-number is '02', not a number"),
    ({"agent-worker-number": "x"}, "agent-worker-number is 'x', not a number"),
    ({"agent-worker-number": None}, "the metadata has no agent-worker-number after 1 s"),
    ({"agent-worker-number": ""}, "the metadata has no agent-worker-number after 1 s"),
    ({"accelerator-type": None}, "the metadata has no accelerator-type after 1 s"),
    ({"accelerator-type": "v6e 16"}, "accelerator-type='v6e 16', which doesn't match"),
    ({"worker-network-endpoints": None}, "worker-network-endpoints is '' after 1 s"),
    ({"worker-network-endpoints": ENDPOINTS.rpartition(",")[0]}, "not unknown:unknown:IP of each"),
    ({"worker-network-endpoints": ENDPOINTS.replace("10.0.0.5", "")}, "not unknown:unknown:IP of each"),
    ({"worker-network-endpoints": f"{ENDPOINTS},e:5:10.0.0.8"}, "names 5 workers, but tpu-workers is 4"),
    ({"tpu-workers": "0"}, "tpu-workers='0', which doesn't match"),
    ({"tpu-workers": None}, "the node's metadata has no 'tpu-workers'"),
    ({"tpu-bucket": None}, "the node's metadata has no 'tpu-bucket'"),
    ({"tpu-bucket": "b/../c"}, "tpu-bucket='b/../c', which doesn't match"),
    ({"tpu-slice": "TPU"}, "tpu-slice='TPU', which doesn't match"),
    ({"tpu-zone": "us_east5"}, "tpu-zone='us_east5', which doesn't match"),
    ({"tpu-member": "007"}, "tpu-member='007', which doesn't match"),
    ({"tpu-checkpoint-folder": "../x"}, "tpu-checkpoint-folder='../x', which doesn't match"),
    ({"tpu-metadata-timeout-s": "1m"}, "tpu-metadata-timeout-s='1m', not a number of seconds"),
])  # fmt: skip
def test_a_host_with_such_metadata_stops(change: dict[str, str | None], message: str, tmp_path: Path) -> None:
    done = identity(tmp_path, {**FOUR, **change})
    assert done.returncode == 1
    assert message in done.stderr


class Bundle:
    """A bundle in a bucket, which `fetch_missing`'s curl is replaced by."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = {"uv": b"uv", "gcsfuse": b"gcsfuse", "wheels/a.whl": b"wheel"}
        self.stored = dict(self.files)

    def install(self, more: str = "") -> subprocess.CompletedProcess[str]:
        bucket = self.folder / "bucket"
        bucket.mkdir(exist_ok=True)
        lines = [f"{hashlib.sha256(content).hexdigest()}  {name}" for name, content in self.files.items()]
        manifest = "".join(f"{line}\n" for line in [*lines, *filter(None, [more])])
        self.id = hashlib.sha256(manifest.encode()).hexdigest()
        (self.folder / self.id).write_text(manifest)
        for name, content in self.files.items():
            if name in self.stored:
                (bucket / hashlib.sha256(content).hexdigest()).write_bytes(self.stored[name])
        stub = f"""
          TPU_BUNDLE={self.id} CHECKPOINT_BUCKET=b
          authorize() {{ :; }}
          disk_is_full() {{ return 1; }}
          gcs_curl() {{
            local url file
            while read -r _ _ url && read -r _ _ file; do
              url=${{url//\\"/}} file=${{file//\\"/}} url=${{url%%\\?*}}
              mkdir -p "$(dirname "$file")"
              if cp "{bucket}/${{url##*%2F}}" "$file"; then echo "200 0 $file"; else echo "404 22 $file"; fi
            done <"$RUN/bundle.wanted" 2>/dev/null
          }}
          mkdir -p {self.folder}/opt/bundles
        """
        return run("bundle", self.folder, stub, path=f"{self.folder}/opt")

    @property
    def installed(self) -> Path:
        return self.folder / "opt/current"


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Bundle(tmp_path)


def test_a_bundle_is_installed_with_the_bytes_of_its_manifest(bundle: Bundle) -> None:
    done = bundle.install()
    assert done.returncode == 0, done.stderr
    assert {name: (bundle.installed / name).read_bytes() for name in bundle.files} == bundle.files
    assert os.access(bundle.installed / "uv", os.X_OK)


def test_a_file_that_was_damaged_on_the_host_is_fetched_again(bundle: Bundle) -> None:
    bundle.install()
    (bundle.installed / "uv").write_bytes(b"damaged")
    assert bundle.install().returncode == 0
    assert (bundle.installed / "uv").read_bytes() == b"uv"


def test_other_bytes_than_the_manifests_are_not_installed(bundle: Bundle) -> None:
    bundle.stored["uv"] = b"other"
    done = bundle.install()
    assert done.returncode == 1
    assert "don't match the manifest" in done.stderr
    assert not bundle.installed.exists()


def test_a_bundle_that_lacks_a_file_is_not_installed(bundle: Bundle) -> None:
    del bundle.stored["gcsfuse"]
    done = bundle.install()
    assert done.returncode == 1
    assert "the bucket lacks files of the bundle" in done.stderr
    assert not bundle.installed.exists()


@pytest.mark.parametrize("name", ["../escaped", "wheels/../../escaped", "/etc/passwd", "a b", ".hidden", ""])
def test_a_manifest_with_such_a_name_is_refused(name: str, bundle: Bundle) -> None:
    done = bundle.install(more=f"{'0' * 64}  {name}")
    assert done.returncode == 1
    assert "the manifest has an invalid file name" in done.stderr
    assert not bundle.installed.exists()


def service(stage: str, folder: Path, failed: str = "false") -> list[str]:
    """Run a stage whose commands are recorded; return them in order."""
    python = folder / "opt/venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho WORKER_ID=0\n")
    python.chmod(0o755)
    stub = f"""
      CHECKPOINT_BUCKET=b TPU_NAME=tpu-dev TPU_ZONE=z ACCELERATOR_TYPE=v6e-8
      metadata() {{ echo "train tiny.toml"; }}
      write_file() {{ cat >/dev/null; }}
      systemd-sysusers() {{ :; }}
      systemctl() {{
        echo "$*" >>{folder}/calls
        case $1 in is-failed) {failed} ;; show) echo 0 ;; esac
      }}
    """
    done = run(stage, folder, stub, path=f"{folder}/opt")
    assert done.returncode == 0, done.stderr
    calls = folder / "calls"
    return calls.read_text().splitlines() if calls.exists() else []


@pytest.mark.parametrize(("failed", "reset"), [("true", ["reset-failed tpu-job.service"]), ("false", [])])
def test_a_job_that_systemd_gave_up_is_reset_before_it_is_started(
    failed: str, reset: list[str], tmp_path: Path
) -> None:
    calls = [
        call for call in service("launch", tmp_path, failed) if call.split()[0] in ("reset-failed", "start")
    ]
    assert calls == [*reset, "start --no-block tpu-job.service"]


def test_the_folder_of_code_is_writable_for_all_and_protects_their_files(tmp_path: Path) -> None:
    service("environment", tmp_path)
    assert (tmp_path / "opt/training").stat().st_mode & 0o7777 == 0o1777
