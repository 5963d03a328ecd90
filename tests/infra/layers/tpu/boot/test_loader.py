"""The loader of the metadata in a plain bash, with the metadata server and the bucket as folders."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import infra.layers.tpu.startup as startup
from tests.infra.layers.tpu.boot.sourced import SLEEP
from tests.limits import HANG_S

# curl as the loader calls it. A line of `answers` is the status of a request to the bucket, or - for its own.
CURL = r"""
curl() {
  local url= out=/dev/stdout code= write= data= token= name
  while (($#)); do
    case $1 in
      -o) out=$2; shift ;;
      -K) token=$(<"$2"); shift ;;
      -d) data=$2; shift ;;
      --data-binary) data=$(cat); shift ;;
      -w) write=$2; shift ;;
      -sfm | -sSm | -H | -X | --retry | --connect-timeout) shift ;;
      http*) url=$1 ;;
    esac
    shift
  done
  name=${url##*/}
  case $url in
    */guest-attributes/*) [[ -e $LAB/guest ]] && printf '%s\n' "$data" >>"$LAB/guest" ;;
    */computeMetadata/*) cat "$LAB/metadata/$name" 2>/dev/null || return 22 ;;
    */upload/*) printf '%s' "$data" >"$LAB/upload.${url##*name=}" ;;
    *)
      [[ $token == *"Bearer lab-token"* ]] || { printf 401; return; }
      name=${name%\?alt=media}
      printf '%s\n' "${name//%2F//}" >>"$LAB/requests"
      code=$(head -n 1 "$LAB/answers") && sed -i 1d "$LAB/answers"
      [[ ${code:--} != - ]] || { code=404; [[ ! -e $LAB/bucket/$name ]] || code=200; }
      [[ $code != 200 ]] || cp "$LAB/bucket/$name" "$out"
      printf '%s' "$code" ;;
  esac
}
"""


class Lab:
    """A host's disk, its metadata and its bucket."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, folder / "run"
        for name in ("metadata", "bucket"):
            (folder / name).mkdir()
        (folder / "guest").touch()
        self.bundle = self.publish('echo "boots $1"\n')
        self.metadata = {
            "id": "4711", "token": '{"access_token": "lab-token"}', "agent-worker-number": "0",
            "tpu-slice": "tpu-lab", "tpu-bucket": "b", "tpu-bundle": self.bundle,
        }  # fmt: skip

    def publish(self, script: str, name: str = startup.IN_BUNDLE) -> str:
        """Store a bundle with this start-up script; return its id."""
        self.script = hashlib.sha256(script.encode()).hexdigest()
        manifest = f"{'0' * 64}  uv\n{self.script}  {name}\n"
        bundle = hashlib.sha256(manifest.encode()).hexdigest()
        self.store(f"manifests/{bundle}", manifest)
        self.store(f"blobs/{self.script}", script)
        return bundle

    def store(self, name: str, content: str) -> None:
        """Write an object below bundles/."""
        (self.folder / "bucket" / f"bundles/{name}".replace("/", "%2F")).write_text(content)

    def boot(
        self, answers: Sequence[int | str] = (), again: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run the loader after a start of the host, or `again` in the same boot."""
        if self.run.exists() and not again:
            shutil.rmtree(self.run)
        for name, value in self.metadata.items():
            (self.folder / "metadata" / name).write_text(value)
        (self.folder / "answers").write_text("".join(f"{answer}\n" for answer in answers))
        (self.folder / "requests").write_text("")
        text = startup.loader()
        for path, own in (("/run/tpu", self.run), ("/opt/tpu", self.folder / "opt")):
            assert path in text
            text = text.replace(path, str(own))
        return subprocess.run(
            ["bash", "-c", f"LAB={self.folder}\n{CURL}\n{SLEEP}\n{text}"],
            capture_output=True, text=True, check=False, timeout=HANG_S,
        )  # fmt: skip

    @property
    def requests(self) -> list[str]:
        """Objects that the last boot requested."""
        return (self.folder / "requests").read_text().splitlines()

    @property
    def guest(self) -> list[dict[str, Any]]:
        """Values of the guest attribute, in order."""
        return [json.loads(line) for line in (self.folder / "guest").read_text().splitlines()]

    def uploaded(self, worker: str = "0") -> tuple[dict[str, str], dict[str, Any]]:
        """Return the metadata of the status object, and its content."""
        body = (self.folder / f"upload.boot%2Ftpu-lab%2Fworker-{worker}.json").read_bytes()
        _, about, status, _ = body.split(b"--b")
        return json.loads(about.split(b"\r\n\r\n")[1])["metadata"], json.loads(status.split(b"\r\n\r\n")[1])


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def refused(lab: Lab, why: str) -> dict[str, Any]:
    """Boot to a failure of the loader with this reason; return the status."""
    done = lab.boot()
    assert done.returncode == 1
    assert done.stdout == "", "nothing was run"
    assert done.stderr.splitlines()[-1] == f"tpu-boot: stage script: {why}"
    status: dict[str, Any] = json.loads((lab.run / "status.json").read_text())
    (stage,) = status["stages"]
    assert (status["state"], stage["name"], stage["state"]) == ("failed", "script", "failed")
    assert stage["log_tail"] == why
    last = lab.guest[-1]
    assert (last["state"], last["stage"], last["why"]) == ("failed", "script", why)
    assert last["boot_id"] == status["boot_id"]
    return status


def test_the_published_script_runs_and_is_kept_on_the_disk(lab: Lab) -> None:
    objects = [f"bundles/manifests/{lab.bundle}", f"bundles/blobs/{lab.script}"]
    kept = lab.folder / "opt/bundles" / lab.bundle / startup.IN_BUNDLE
    for requested in (objects, []):
        assert lab.boot().stdout == f"boots {lab.bundle}\n"
        assert lab.requests == requested
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == lab.script
    kept.write_text("echo another\n")
    assert lab.boot().stdout == f"boots {lab.bundle}\n"
    assert lab.requests == objects[1:]
    assert lab.guest == []


def test_a_passing_refusal_is_waited_for_and_reported(lab: Lab) -> None:
    done = lab.boot([403, "-", 503])
    assert done.stdout == f"boots {lab.bundle}\n"
    waits = [(report["state"], report["stage"], report["why"]) for report in lab.guest]
    assert waits == [
        ("booting", "script", f"waiting for gs://b/bundles/manifests/{lab.bundle}: HTTP 403"),
        ("booting", "script", f"waiting for gs://b/bundles/blobs/{lab.script}: HTTP 503"),
    ]
    assert lab.uploaded()[0]["state"] == "booting"
    lasting = lab.boot([403] * 60)
    assert lasting.stdout == f"boots {lab.bundle}\n", "its disk has the bundle"
    lab.metadata["tpu-bundle"] = lab.publish("echo new\n")
    assert "HTTP 403 for 7 min" in lab.boot([403] * 60).stderr
    assert len(lab.requests) == 43


def test_what_was_never_published_fails_at_once_with_the_command(lab: Lab) -> None:
    lab.metadata["tpu-bundle"] = "0" * 64
    why = f"there is no gs://b/bundles/manifests/{'0' * 64}: run 'tpu publish'"
    status = refused(lab, why)
    assert len(lab.requests) == 1
    assert lab.uploaded() == (
        {"state": "failed", "stage": "script", "instance": "4711", "why": why}, status,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["manifests", "blobs"])
def test_other_content_than_the_hash_promises_never_runs(kind: str, lab: Lab) -> None:
    name = f"{kind}/{lab.bundle if kind == 'manifests' else lab.script}"
    lab.store(name, "echo another\n")
    refused(lab, f"gs://b/bundles/{name} doesn't match its sha256")
    assert not list((lab.folder / "opt").rglob(startup.IN_BUNDLE))


def test_a_bundle_without_the_script_is_refused_and_a_host_without_its_number_overwrites_no_status(
    lab: Lab,
) -> None:
    lab.metadata["tpu-bundle"] = lab.publish("echo old\n", name="other.sh")
    del lab.metadata["agent-worker-number"]
    status = refused(lab, f"bundle {lab.metadata['tpu-bundle']} has no startup.sh: run 'tpu publish'")
    assert status["worker"] is None
    assert lab.uploaded("unknown-4711")[1] == status


@pytest.mark.parametrize("bundle", ["", "latest", "0" * 63])
def test_a_node_without_a_bundle_is_refused(bundle: str, lab: Lab) -> None:
    lab.metadata["tpu-bundle"] = bundle
    refused(lab, "the node's metadata has no tpu-bundle")
    assert lab.requests == []


def test_a_run_after_a_boot_that_was_ready_has_states_of_its_own(lab: Lab) -> None:
    lab.boot()
    (lab.run / "ready").touch()
    lab.metadata["tpu-bundle"] = lab.publish("echo new\n")
    assert lab.boot([403], again=True).stdout == "new\n"
    assert lab.guest[-1]["state"] == "rerunning"
    lab.metadata["tpu-bundle"] = "0" * 64
    lab.boot(again=True)
    assert lab.guest[-1]["state"] == lab.uploaded()[0]["state"] == "rerun-failed"


def test_a_host_that_may_write_no_guest_attribute_logs_it_and_boots(lab: Lab) -> None:
    (lab.folder / "guest").unlink()
    done = lab.boot([403])
    assert done.stdout == f"boots {lab.bundle}\n"
    assert "tpu-boot: guest attribute tpu/boot not written\n" in done.stderr
