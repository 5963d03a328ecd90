"""A command of the user's own on a host that really boots: its code, its heartbeat, its logs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from google.cloud import storage

from infra.layers.tpu import startup
from infra.publish import archive
from infra.publish.bundle import sha256_of

from .lab import Host, failed, ready, until
from .storage import BUCKET, Fault, client_of
from .test_boot import MakeHost, listed, uploaded

pytestmark = [pytest.mark.root, pytest.mark.slow]

START = """#!/bin/bash
echo "start $(cat tries 2>/dev/null) in $PWD by $(whoami): $(python -c 'import sys; print(sys.prefix)')"
echo -n x >>tries
[[ -e seen ]] || { echo 'it fails until somebody has seen it'; exit 7; }
exec /bin/sleep infinity
"""


def republish(bucket: storage.Bucket, bundle: str, folder: Path, files: dict[str, str]) -> str:
    """Return the id of a bundle with this code of the user."""
    packed = folder / "code.tar.gz"
    archive.write(packed, {name: text.encode() for name, text in files.items()}, executable={"start.sh"})
    manifest = bucket.blob(f"bundles/manifests/{bundle}").download_as_text().splitlines()
    lines = [line for line in manifest if not line.endswith("  code.tar.gz")]
    lines.append(f"{sha256_of(packed)}  code.tar.gz")
    made = folder / "manifest"
    made.write_text("".join(f"{line}\n" for line in sorted(lines, key=lambda line: line.split("  ")[1])))
    bucket.blob(f"bundles/blobs/{sha256_of(packed)}").upload_from_filename(str(packed))
    bucket.blob(f"bundles/manifests/{sha256_of(made)}").upload_from_filename(str(made))
    return sha256_of(made)


def texts(host: Host, unit: str) -> list[str]:
    return [entry["textPayload"] for entry in host.lab.front.logged if entry["labels"]["unit"] == unit]


def test_own_code_runs_fails_and_runs_again_with_its_heartbeat_and_its_logs(
    make_host: MakeHost, gcs: str, published: str, tmp_path: Path
) -> None:
    bucket = client_of(gcs).bucket(BUCKET)
    first = republish(bucket, published, tmp_path, {"start.sh": START, "pkg/a.txt": "1", "old.txt": "1"})
    host = make_host(tpu_bundle=first, tpu_run="./start.sh", tpu_slice_name="mine")
    # A grant that isn't there yet holds up no boot, and loses no line.
    refusal = Fault(lambda method, path: path == "/v2/entries:write", 403, 3)
    host.lab.front.faults.append(refusal)
    words: list[dict[str, str]] = []  # as they are written: one may stand for no longer than a restart takes
    host.lab.front.on_status = lambda item: words.append(item) if "stages" not in item else None

    def reported(state: str) -> dict[str, str] | None:
        return next((word for word in words if word["state"] == state), None)

    ready(host)
    word = until(lambda: reported("failed"), host)
    assert word["why"] == "exit status 7: it fails until somebody has seen it"
    (host.files / "opt/training/seen").touch()  # a busy machine may miss the first of its failures
    assert (word["instance"], len(word["command"])) == ("4711", 12)
    until(lambda: listed(gcs, "heartbeats/")["heartbeats/tpu-lab/worker-0"]["state"] == "running", host)
    until(lambda: "start x in /opt/training by tpu: /opt/tpu/venv" in texts(host, "tpu-job.service"), host)
    assert refusal.observed == 3
    until(lambda: any("ready after" in text for text in texts(host, "google-startup-scripts.service")), host)
    assert {entry["labels"]["slice"] for entry in host.lab.front.logged} == {"mine"}
    ids = [entry["insertId"] for entry in host.lab.front.logged]
    assert len(ids) == len(set(ids))
    assert host.run("systemctl", "show", "--property=User", "--value", "tpu-logs").strip() == "tpu-logs"

    # What the job wrote and what a user changed outlive the next bundle; what that one lacks goes.
    (host.files / "opt/training/pkg/a.txt").write_text("mine")
    second = republish(bucket, first, tmp_path, {"start.sh": START, "pkg/a.txt": "2"})
    host.lab.metadata.set("tpu-bundle", second)
    host.run("systemctl", "start", "google-startup-scripts.service")
    status = host.status()
    assert status["state"] == "ready", host.log()
    (stage,) = [stage for stage in status["stages"] if stage["name"] == "code"]
    assert "2 files, 1 of them new; removed 1 of an earlier bundle" in stage["log_tail"]
    top = host.files / "opt/training"
    result = {path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file()}
    assert result == {"start.sh", "tries", "seen", "pkg/a.txt", "pkg/a.txt.kept"}
    assert (top / "pkg/a.txt.kept").read_text() == "mine"

    # Code alone, of a bundle that the metadata name by now: no other stage, and one venv for all three.
    third = republish(bucket, first, tmp_path, {"start.sh": START, "pkg/a.txt": "3"})
    host.lab.metadata.set("tpu-bundle", third)
    host.run("bash", "-c", startup.loader(), "loader", "code")
    status = host.status()
    assert (status["state"], status["bundle"]) == ("ready", third), host.log()
    assert [stage["name"] for stage in status["stages"]] == ["bundle", "code"]
    assert (top / "pkg/a.txt").read_text() == "3"
    assert len([*(host.files / "opt/tpu/venvs").iterdir()]) == 1

    # Stopped manually it isn't done, and started again it is heard of.
    before = listed(gcs, "heartbeats/")["heartbeats/tpu-lab/worker-0"]
    host.run("systemctl", "stop", "tpu-job.service")
    time.sleep(4)
    assert listed(gcs, "heartbeats/")["heartbeats/tpu-lab/worker-0"] == before
    assert host.run("systemctl", "is-active", "tpu-heartbeat", check=False).strip() == "inactive"
    host.run("systemctl", "start", "tpu-job.service")
    until(lambda: host.run("systemctl", "is-active", "tpu-heartbeat", check=False).strip() == "active", host)

    # The orderly end of the machine: the last lines are sent, and the heartbeat says nothing.
    host.run("systemctl", "kill", "--signal=CONT", "tpu-job.service")
    host.power_off()
    assert listed(gcs, "heartbeats/")["heartbeats/tpu-lab/worker-0"]["state"] == "running"
    assert any("Stopping" in text or "Stopped" in text for text in texts(host, "tpu-job.service")[-3:])


@pytest.mark.prove  # test_unit has the words every day
def test_a_command_gets_its_words_and_is_done_when_it_ends_well(make_host: MakeHost, gcs: str) -> None:
    words = r"""/usr/bin/printf '[%s]\n' "a b" '$HOME' '100%' 'quo"te' 'back\slash' ''"""
    host = make_host(tpu_run=words)
    ready(host)
    until(
        lambda: listed(gcs, "heartbeats/").get("heartbeats/tpu-lab/worker-0", {}).get("state") == "done", host
    )
    until(lambda: "[]" in texts(host, "tpu-job.service"), host)
    expected = {"[a b]", "[$HOME]", "[100%]", '[quo"te]', "[back\\slash]", "[]"}
    assert expected <= set(texts(host, "tpu-job.service"))
    shown = host.run(
        "systemctl", "show", "tpu-job", "-p", "User", "-p", "TimeoutStopUSec", "-p", "KillSignal"
    )
    assert set(shown.split()) == {"User=tpu", "TimeoutStopUSec=28s", "KillSignal=15"}

    # A command that reports its progress itself has no such heartbeat.
    host.lab.metadata.set("tpu-run", "train tiny.toml")
    host.run("systemctl", "start", "google-startup-scripts.service")
    assert not (host.root / "etc/systemd/system/tpu-heartbeat.service").exists()
    assert host.run("systemctl", "is-active", "tpu-heartbeat", check=False).strip() == "inactive"


def test_a_host_without_its_number_stops_and_sends_its_status_and_log(make_host: MakeHost, gcs: str) -> None:
    """It has no Python yet."""
    host = make_host(agent_worker_number=None)
    tail = failed(host, "identity")["log_tail"]
    assert "agent-worker-number" in tail
    assert uploaded(host, "boot/tpu-lab/worker-unknown-4711.json", "failed")["worker"] is None
    (about,) = listed(gcs, "boot/").values()
    assert "agent-worker-number" in about.pop("why")
    assert about == {"state": "failed", "stage": "identity", "instance": "4711"}
    (entry,) = until(lambda: host.lab.front.logged, host)
    assert entry["textPayload"].startswith("boot failed in stage identity\n")
    assert tail.splitlines()[-1] in entry["textPayload"]
    assert (entry["severity"], entry["logName"]) == ("ERROR", "projects/lab/logs/tpu-host")
    assert entry["labels"] == {
        "node": "tpu-lab",
        "worker": "unknown",
        "zone": "us-east5-b",
        "slice": "tpu-lab",
        "instance": "4711",
        "bucket": BUCKET,
        "unit": "google-startup-scripts.service",
    }
