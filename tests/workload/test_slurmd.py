"""A host's way into a Slurm cluster: words, packages by hash, munge's key, mounts, its jobs' end."""

from __future__ import annotations

import hashlib
import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
import urllib.error
from email.message import Message
from pathlib import Path

import pytest

from tests.limits import HANG_S
from workload.host.__main__ import main
from workload.host.bucket import Bucket
from workload.host.errors import HostError, RunError
from workload.host.slurmd import arguments, install, jobs, mounts, service
from workload.host.slurmd.arguments import Mount
from workload.host.unit import heartbeat_unit, job_unit

BUNDLE = "ab" * 32
WORDS = ["10.128.0.5", "tpu-3", BUNDLE, "projects/p/secrets/slurm-dev-munge", "10.128.0.5:/home"]


def test_the_words_of_the_layer() -> None:
    more = ["--startup=gs://b/scripts/x.sh", "--mount=nfs,10.0.0.9,/data,/data,ro:nconnect=4",
            "--mount=gcsfuse,,bucket,/mnt/bucket,"]  # fmt: skip
    parsed = arguments.parse([*WORDS, *more])
    assert (parsed.controller, parsed.prefix, parsed.bundle) == ("10.128.0.5", "tpu-3", BUNDLE)
    assert parsed.startup == ("b", "scripts/x.sh")
    assert parsed.mounts == (
        Mount("nfs", "10.128.0.5:/home", "/home", ("hard", "nosuid", "nodev")),
        Mount("nfs", "10.0.0.9:/data", "/data", ("ro", "nconnect=4")),
        Mount("gcsfuse", "bucket", "/mnt/bucket"),
    )


def test_all_wrong_words_are_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slurmd", "host", "tpu", "x", "secret", "home", "--mount=nfs,,/a,b,"]) == 2
    output = capsys.readouterr().err
    for word in ("CONTROLLER is 'host'", "PREFIX is 'tpu'", "BUNDLE", "SECRET", "HOME", "--mount=nfs"):
        assert word in output
    with pytest.raises(RunError, match="slurmd takes 5 words, not 1"):
        arguments.parse(["10.0.0.1"])


def test_the_service_is_roots_and_joins_without_its_slices_others() -> None:
    unit = job_unit(f"slurmd {' '.join(WORDS)}")
    assert "User=root\n" in unit
    assert 'ExecStart=/opt/tpu/venv/bin/python -m workload.host slurmd "10.128.0.5"' in unit
    assert "ExecStartPre" not in unit
    assert "TimeoutStopSec=28" in unit
    assert jobs.SAVE_S < 28
    assert "heartbeat" in heartbeat_unit("slurmd 10.0.0.1"), "slurmd writes none itself"


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (
            "error: failed to fetch remote configs",
            "slurmctld refuses this host: munge's key differs from the",
        ),
        ("fatal: lookup failure for node", "slurm.conf has no such node: tpu up ENV slurm"),
        ("error: something else", "exit status 1: slurmd: error: something else"),
    ],
)
def test_a_host_that_cant_join_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, reason: str
) -> None:
    (tmp_path / "slurmd").write_text(f"#!/bin/sh\necho 'slurmd: {printed}' >&2\nexit 1\n")
    (tmp_path / "slurmd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(HostError, match=re.escape(reason)):
        service._serve("10.0.0.2", "tpu-0-w0", threading.Event())


def _program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("state", "busy", "starts"),
    [
        ("IDLE+CLOUD+NOT_RESPONDING+POWERING_UP", False, 2),
        ("IDLE+CLOUD+POWERING_UP", False, 2),
        ("IDLE+CLOUD+POWERING_UP", True, 1),
        ("IDLE+CLOUD", False, 1),
        ("", False, 1),
    ],
)
def test_a_host_that_slurmctld_has_lost_registers_again_unless_a_job_runs_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, busy: bool, starts: int
) -> None:
    """Until slurmctld knows it: the second answer is that it does. An empty state: slurmctld is silent.

    A further start counts as a boot (-b): slurmctld ignores a boot that isn't later than its request.
    """
    looks, stopping = tmp_path / "looks", threading.Event()
    lost = f"NodeName=tpu-0-w0 State={state} ThreadsPerCore=1"
    known = "NodeName=tpu-0-w0 State=IDLE+CLOUD ThreadsPerCore=1"
    answer = f'[ $(wc -l <{looks}) -gt 1 ] && echo "{known}" || echo "{lost}"' if state else "exit 1"
    _program(tmp_path, "scontrol", f"echo $* >>{looks}; {answer}")
    _program(tmp_path, "slurmd", f"echo start ${{6:-}} >>{tmp_path}/starts; exec sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    steps = iter(range(3))

    def of_steps() -> list[int]:
        if next(steps, None) is None:
            stopping.set()
        return [1] if busy else []

    monkeypatch.setattr(service, "of_steps", of_steps)
    service._serve("10.0.0.2", "tpu-0-w0", stopping, 0.05)
    assert (tmp_path / "starts").read_text().splitlines() == ["start", "start -b"][:starts]
    assert looks.exists() != busy


class Objects(Bucket):
    """A bucket of bytes by name."""

    def __init__(self, **objects: bytes) -> None:
        super().__init__("b")
        self.objects = objects

    def read(self, name: str) -> bytes | None:
        return self.objects.get(name)


def published(**files: str) -> tuple[Objects, str]:
    """Return a bucket with a bundle of these files, and its id."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content.encode()))
    blob = hashlib.sha256(archive.getvalue()).hexdigest()
    manifest = f"{'0' * 64}  uv\n{blob}  slurm.tar.gz\n".encode()
    bundle = hashlib.sha256(manifest).hexdigest()
    objects = {f"bundles/manifests/{bundle}": manifest, f"bundles/blobs/{blob}": archive.getvalue()}
    return Objects(**objects), bundle


def unpack(root: Path, bucket: Bucket, bundle: str) -> bool:
    return install.packages(bucket, bundle, root, root / "var/lib/tpu")


def test_packages_are_unpacked_once_and_what_the_image_has_wins(tmp_path: Path) -> None:
    (tmp_path / "usr/sbin").mkdir(parents=True)
    (tmp_path / "sbin").symlink_to("usr/sbin")
    (tmp_path / "usr/sbin/mount.nfs").write_text("the image's")
    bucket, bundle = published(**{"usr/sbin/mount.nfs": "ours", "usr/sbin/slurmd": "old", "usr/bin/x": "x"})
    assert unpack(tmp_path, bucket, bundle)
    assert not unpack(tmp_path, Objects(), bundle), "nothing is fetched again"
    assert (tmp_path / "usr/sbin/mount.nfs").read_text() == "the image's"
    bucket, newer = published(**{"usr/sbin/mount.nfs": "ours", "usr/sbin/slurmd": "new"})
    assert unpack(tmp_path, bucket, newer)
    assert (tmp_path / "usr/sbin/slurmd").read_text() == "new"
    assert not (tmp_path / "usr/bin/x").exists()
    assert (tmp_path / "usr/sbin/mount.nfs").read_text() == "the image's"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("manifests", "doesn't match its sha256"),
        ("blobs", "doesn't match its sha256"),
        ("", "there is no gs://b/"),
    ],
)
def test_a_bundle_that_is_not_what_its_id_says_is_not_unpacked(
    damage: str, message: str, tmp_path: Path
) -> None:
    bucket, bundle = published(**{"usr/bin/x": "x"})
    for name in list(bucket.objects):
        if not damage:
            del bucket.objects[name]
        elif damage in name:
            bucket.objects[name] += b"\n"
    with pytest.raises(HostError, match=message):
        unpack(tmp_path, bucket, bundle)
    assert not (tmp_path / "usr").exists()


@pytest.mark.parametrize(
    ("code", "message"), [(403, "may not read it"), (404, "it has no version"), (500, "oops")]
)
def test_a_key_that_can_not_be_read_says_what_to_do(
    code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise urllib.error.HTTPError("u", code, "oops", Message(), None)

    monkeypatch.setattr("workload.host.secret_variables.access_token", lambda: "t")
    monkeypatch.setattr("urllib.request.urlopen", refuse)
    with pytest.raises(HostError, match=f"munge's key, s: HTTP {code}: .*{message}"):
        install.key("s")


def test_a_mount_is_made_once_and_never_over_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[tuple[str, ...]] = []
    mounted: set[str] = set()

    def run(*words: str, doing: str) -> str:
        lines.append(words)
        (mounted.discard if "umount" in words[-1] else mounted.add)(target)
        return ""

    monkeypatch.setattr(mounts, "command", run)
    monkeypatch.setattr("os.path.ismount", lambda path: path in mounted)
    target, record = str(tmp_path / "home"), tmp_path / "record.json"
    home = Mount("nfs", "10.0.0.5:/home", target, ("ro",))
    for _ in range(2):
        mounts.mount(home, record)
    assert lines == [("mount", "-t", "nfs", "-o", "ro", "10.0.0.5:/home", target)]
    mounts.mount(Mount("nfs", "10.0.0.6:/home", target), record)
    assert [words[0] for words in lines] == ["mount", "sh", "mount"], "its server has moved"
    record.unlink()
    with pytest.raises(HostError, match="another file system is there"):
        mounts.mount(home, record)


def test_a_job_that_can_not_be_queued_again_is_told_to_save_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No slurmctld answers: the trainer, below slurmstepd, gets the signal."""
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(7)); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout
        assert trainer.stdout.readline()
        for pid, name, parent in ((1, "systemd", 0), (8, "slurmstepd", 1), (trainer.pid, "a (b)", 8)):
            (tmp_path / str(pid)).mkdir()
            (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 1 1")
        assert jobs.of_steps(tmp_path) == [trainer.pid]
        monkeypatch.setattr(jobs, "output", lambda *_, **__: (_ for _ in ()).throw(OSError("no squeue")))
        jobs.end_jobs("tpu-0-w0", 0.1, tmp_path)
        assert trainer.wait(HANG_S) == 7


def test_jobs_that_slurmctld_takes_for_running_since_before_the_boot_are_queued_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[tuple[str, ...]] = []
    boot_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    starts = {"17": boot_s - 2, "18": boot_s - 0.5, "19": boot_s + 60}

    def answer(*words: str, **_: str) -> str:
        commands.append(words)
        return "".join(f"{job} {start}\n" for job, start in starts.items())

    monkeypatch.setattr(jobs, "output", answer)
    assert jobs.requeue_earlier("tpu-0-w0") == ["17"], "clocks may differ by a second"
    assert commands[1:] == [("scontrol", "requeue", "17")]
    monkeypatch.setattr(jobs, "output", lambda *_, **__: "17 N/A\n")
    assert jobs.requeue_earlier("tpu-0-w0") == []


def test_jobs_are_queued_again_and_get_no_second_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid, name, parent in ((8, "slurmstepd", 1), (os.getpid(), "python", 8)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 1 1")
    commands: list[tuple[str, ...]] = []

    def answer(*words: str, **_: str) -> str:
        commands.append(words)
        if words[0] == "scontrol":
            (tmp_path / str(os.getpid()) / "stat").unlink()
        return "17 1795765662\n18+1 1795765662\n"

    monkeypatch.setattr(jobs, "output", answer)
    before = signal.getsignal(signal.SIGTERM)
    jobs.end_jobs("tpu-0-w0", HANG_S, tmp_path)
    assert commands[1:] == [("scontrol", "requeue", job) for job in ("17", "18")], "18+1 isn't taken"
    assert "--nodelist=tpu-0-w0" in commands[0]
    assert signal.getsignal(signal.SIGTERM) == before
