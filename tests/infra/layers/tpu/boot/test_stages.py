"""Stages of the boot script in a plain bash: functions of (metadata, folder), without a machine."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.infra.layers.tpu.boot.sourced import PARTS, SLEEP, bash, metadata

ENDPOINTS = "a:1:10.0.0.4,b:2:10.0.0.5,c:3:10.0.0.6,d:4:10.0.0.7"
FOUR = {
    "tpu-bucket": "b", "tpu-slice": "tpu-dev", "tpu-zone": "us-east5-b", "tpu-workers": "4",
    "accelerator-type": "v6e-16", "agent-worker-number": "2",
    "worker-network-endpoints": ENDPOINTS,
    "tpu-metadata-timeout-s": "1",
}  # fmt: skip
ONE = {**FOUR, "tpu-workers": "1", "agent-worker-number": "0", "worker-network-endpoints": "a:1:10.0.0.9"}


HOST_FOLDERS = {
    "/opt/tpu": "opt", "/opt/training": "training", "/etc/systemd/system": "units", "/mnt/data": "data",
    "/mnt/checkpoints": "mounted",
}  # fmt: skip


def run(stage: str, folder: Path, stubs: str) -> subprocess.CompletedProcess[str]:
    """Run a stage in `folder` after the prelude, with functions replaced by `stubs`."""
    text = (PARTS / f"{stage}.sh").read_text()
    paths = {path: folder / name for path, name in HOST_FOLDERS.items() if path in text}
    code = f"RUN={folder}\n{SLEEP}\n{stubs}\nstage_{stage.replace('-', '_')}"
    return bash(code, ("prelude", stage), paths)


def identity(
    folder: Path, attributes: Mapping[str, str | None], late: Mapping[str, tuple[int, str]] = {}
) -> subprocess.CompletedProcess[str]:
    """Run `identity` in second 100 with a metadata server that has these attributes."""
    return run("identity", folder, f"{metadata(attributes, late)}\nSECONDS=100")


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


@pytest.mark.parametrize(("key", "before"), [
    ("agent-worker-number", None), ("agent-worker-number", ""), ("worker-network-endpoints", None),
    ("worker-network-endpoints", "a:1:10.0.0.4,b:2:"),  # a slice whose hosts are still being created
])  # fmt: skip
def test_what_google_writes_late_is_waited_for_and_the_wait_is_logged(
    key: str, before: str | None, tmp_path: Path
) -> None:
    attributes = {**FOUR, "tpu-metadata-timeout-s": "600"}
    done = identity(tmp_path, {**attributes, key: before}, {key: (230, str(attributes[key]))})
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"waiting for {key}, at most 600 s") == 3, "once a minute"
    assert remembered(tmp_path)["WORKER_ID"] == "2"
    late = identity(tmp_path, {**attributes, key: before}, {key: (601, str(attributes[key]))})
    assert late.returncode == 1


class Bundle:
    """A bundle in a folder as bucket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = {"uv": b"uv", "gcsfuse": b"gcsfuse", "wheels/a.whl": b"wheel"}
        self.stored = dict(self.files)

    def install(self, more: str = "", stubs: str = "") -> subprocess.CompletedProcess[str]:
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
          {stubs}
        """
        return run("bundle", self.folder, stub)

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


def test_another_bundle_fetches_only_what_the_one_before_lacks(bundle: Bundle) -> None:
    assert bundle.install().returncode == 0
    before = bundle.installed.resolve()
    before.with_suffix(".manifest").write_text((bundle.folder / bundle.id).read_text())  # as the loader does
    (before / "gcsfuse").unlink()
    (before / "uv").write_bytes(b"damaged")
    bundle.files["code.tar.gz"] = bundle.stored["code.tar.gz"] = b"new code"
    done = bundle.install()
    assert done.returncode == 0, done.stderr
    wanted = (bundle.folder / "bundle.wanted").read_text()
    assert {name: (bundle.installed / name).read_bytes() for name in bundle.files} == bundle.files
    assert (bundle.installed / "wheels/a.whl").samefile(before / "wheels/a.whl")
    assert [line for line in wanted.splitlines() if "output" in line] == ['output = "uv.part"'], (
        "a second round"
    )


@pytest.mark.parametrize(("change", "alone"), [
    ({"code.tar.gz": b"2"}, True), ({"code.tar.gz": None}, True), ({}, True), ({"uv": b"2"}, False),
    ({"code.tar.gz": b"2", "wheels/b.whl": b""}, False), ({"wheels/a.whl": None}, False),
])  # fmt: skip
def test_only_a_change_of_the_users_code_needs_no_other_stage(
    change: dict[str, bytes | None], alone: bool, bundle: Bundle
) -> None:
    bundle.files["code.tar.gz"] = bundle.stored["code.tar.gz"] = b"1"
    bundle.install()
    check = f"RUN={bundle.folder} TPU_BUNDLE=%s\ncode_alone && echo alone || echo not"
    before = bundle.id
    bundle.files = {name: text for name, text in {**bundle.files, **change}.items() if text is not None}
    bundle.stored = dict(bundle.files)
    bundle.install()
    assert bash(check % bundle.id, ("prelude", "bundle")).stdout == "not\n", "the host isn't ready"
    (bundle.folder / "ready").write_text(before)
    assert bash(check % bundle.id, ("prelude", "bundle")).stdout == ("alone\n" if alone else "not\n")


@pytest.mark.parametrize("alone", [True, False])
def test_other_stages_than_those_of_code_run_in_their_service(alone: bool, tmp_path: Path) -> None:
    service = tmp_path / "systemctl"
    service.write_text('#!/bin/bash\n[[ ! -e /proc/$$/fd/9 ]] && echo "service: $*"\n')
    service.chmod(0o755)
    stubs = f"""
      PATH={tmp_path}:$PATH
      begin_boot() {{ exec 9>{tmp_path}/lock; }}
      code_alone() {{ {str(alone).lower()}; }}
      learn() {{ :; }}
      run_stage() {{ echo "stage $1"; }}
      end_boot() {{ :; }}
      set -- {"0" * 64} code
    """
    done = bash(stubs + (PARTS / "main.sh").read_text(), ("prelude",))
    lines = ["stage bundle", "stage code"] if alone else ["service: restart google-startup-scripts"]
    assert done.stdout.splitlines() == lines, done.stderr


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


@pytest.mark.parametrize(("stubs", "status"), [
    ('gcs_curl() { echo "403 22 uv.part"; return 22; }', 75),  # a new grant's propagation: tried again
    ('gcs_curl() { echo "000 23 uv.part"; return 23; }', 75),
    ("authorize() { return 1; }", 75),
    ("disk_is_full() { :; }", 1),
])  # fmt: skip
def test_a_bundle_that_cannot_be_fetched_now_is_not_installed(
    stubs: str, status: int, bundle: Bundle
) -> None:
    assert bundle.install(stubs=stubs).returncode == status
    assert not bundle.installed.exists()
    assert bundle.install().returncode == 0


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
    done = run(stage, folder, f"""
      CHECKPOINT_BUCKET=b TPU_NAME=tpu-dev TPU_ZONE=z ACCELERATOR_TYPE=v6e-8
      metadata() {{ echo "train tiny.toml"; }}
      write_file() {{ cat >/dev/null; }}
      systemd-sysusers() {{ :; }}
      systemctl() {{
        echo "$*" >>{folder}/calls
        case $1 in is-failed) {failed} ;; show) echo 0 ;; esac
      }}
    """)  # fmt: skip
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
    assert (tmp_path / "training").stat().st_mode & 0o7777 == 0o1777


def test_a_missing_disk_names_the_disks_that_exist(tmp_path: Path) -> None:
    done = run("mount-data", tmp_path, """
      optional() { VALUE=c4-us-east5-b; }
      mountpoint() { return 1; }
      find() { printf 'google-boot '; }
    """)  # fmt: skip
    assert done.returncode == 1
    assert (
        "the data disk 'c4-us-east5-b' didn't appear within 60 s; /dev/disk/by-id has: google-boot"
        in done.stderr
    )


@pytest.mark.parametrize(("code", "layout", "status", "hns"), [
    (200, '{"hierarchicalNamespace": {"enabled": true}}', 0, "true"), (200, "{}", 0, "false"),
    (404, "", 1, ""), (403, "", 75, ""), ("000", "", 75, ""),
])  # fmt: skip
def test_the_bucket_is_mounted_by_its_layout_and_the_status_without_a_number_removed(
    code: int | str, layout: str, status: int, hns: str, tmp_path: Path
) -> None:
    early = tmp_path / "mounted/boot/tpu-dev/worker-unknown-4711.json"
    early.parent.mkdir(parents=True)
    early.touch()
    done = run("mount-checkpoints", tmp_path, f"""
      CHECKPOINT_BUCKET=b TPU_NAME=tpu-dev WORKER_ID=0 INSTANCE_ID=4711 TPU_BUNDLE=x
      authorize() {{ :; }}
      gcs_get() {{ echo '{layout}' >"$2"; printf {code}; }}
      systemctl() {{ echo 0; }}
      mountpoint() {{ :; }}
      try_unprivileged() {{ :; }}
    """)  # fmt: skip
    assert done.returncode == status, done.stderr
    assert early.exists() == (status != 0)
    if status == 0:
        unit = (tmp_path / "units/tpu-checkpoints.service").read_text()
        assert f" --enable-hns={hns} " in unit
        assert "\nRestart=always\n" in unit
