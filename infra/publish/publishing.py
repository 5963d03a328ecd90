"""Build a bundle, upload it, record its id."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import uv
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from infra.layers.tpu import startup
from infra.publish import bytecode, code, interpreter, machines, requirements, wheels
from infra.publish.bundle import Bundle, assemble
from infra.publish.environment import Target, target_of
from infra.publish.errors import PublishError
from infra.publish.upload import Upload, require_bucket, upload
from infra.settings.record import record
from infra.settings.sources import INSTALLED, PROGRAM, ROOT
from views.counts import counted

LOCKS = ("tpu", "cpu", "bare")
_NO_LOCK = "# No packages besides the workload's own wheel.\n"


def default_lock() -> str:
    """Return the default packages: those of a real host, except in a rehearsal."""
    return os.environ.get("TPU_LOCK") or "tpu"


@dataclass(frozen=True)
class Published:
    """A bundle and its upload."""

    bundle: Bundle
    interpreter: str
    upload: Upload


def publish(
    target: Target, lock: str, console: Console, again: str, upload_it: bool = True,
    accept: Callable[[str], None] = lambda _: None,
) -> Published:  # fmt: skip
    """Build a bundle and upload it.

    Args:
        target: where to, and what of the user's own it holds.
        lock: which packages, of `LOCKS`.
        console: for progress.
        again: the command to type once what is wrong is mended.
        upload_it: False to build it only.
        accept: receives the bundle's id before the upload, and may raise.

    Raises:
        PublishError: what is wrong with the user's own code, or with this machine.
    """
    _check_machine()
    with tempfile.TemporaryDirectory(prefix="publish.") as work:
        # First: what is wrong with the user's own is the user's to mend.
        try:
            own = _own(target, _lock(lock, target.tensorflow), Path(work), console)
        except PublishError as error:
            raise type(error)(f"{error}. Nothing was published. Next: {again}") from error
        if upload_it:
            require_bucket(target.bucket)
        chosen = interpreter.choose(for_tpu=lock == "tpu")
        if chosen.new:
            console.print(f"interpreter: {chosen.why}", markup=False)
        bundle = _build(lock, target.tensorflow, chosen.archive, Path(work), own, console)
        console.print(
            f"bundle: {bundle.id}: {counted(len(bundle.files), 'file')}, {bundle.size_bytes / 1e6:.0f} MB"
        )
        accept(bundle.id)
        done = _upload(bundle, target.bucket, console) if upload_it else Upload(0, 0, 0)
    return Published(bundle, chosen.why, done)


def publish_environment(
    environment: str, console: Console, lock: str, *,
    tensorflow: bool = False, bucket: str | None = None, dry_run: bool = False,
) -> dict[str, object]:  # fmt: skip
    """Build an environment's bundle, upload it, and record its id in the settings.

    Args:
        environment: the name in Pulumi.ENV.yaml.
        console: for progress.
        lock: packages, of `LOCKS`.
        tensorflow: include TensorFlow, whatever tpu:tensorflow is.
        bucket: another bucket; the settings are neither read nor changed then.
        dry_run: build only.

    Returns:
        A report for programs.

    Raises:
        InfraError: the settings, the user's code or this machine can't be used.
    """
    began = time.monotonic()
    _check_machine()
    if bucket is None:
        target = target_of(environment, ROOT)
        target = replace(target, tensorflow=tensorflow or target.tensorflow)
    else:
        target = Target(bucket, tensorflow, None, None, {})
    published = publish(target, lock, console, f"tpu publish {environment}", upload_it=not dry_run)
    bundle, done = published.bundle, published.upload
    of_layers: dict[str, str] = {}
    if bucket is None:
        of_layers = machines.publish(
            environment,
            lambda built: None if dry_run else _upload(built, target.bucket, console),
            lambda line: console.print(line, markup=False),
            recorded=not dry_run,
            root=ROOT,
        )
    if dry_run:
        console.print("dry run: nothing is uploaded, nothing is recorded")
    elif bucket is None and record(environment, "tpu:bundle", bundle.id, ROOT):
        console.print(f"Pulumi.{environment}.yaml: tpu:bundle is set")
        console.print(f"next: tpu up {environment} tpu")
    return {
        "bundle": bundle.id,
        "machines": of_layers,
        "bucket": target.bucket,
        "lock": lock,
        "tensorflow": target.tensorflow,
        "interpreter": published.interpreter,
        "files": len(bundle.files),
        "bytes": bundle.size_bytes,
        "uploaded": done.uploaded,
        "uploaded_bytes": done.uploaded_bytes,
        "seconds": round(time.monotonic() - began, 2),
    }


def _check_machine() -> None:
    """Refuse a machine whose gcsfuse and uv, which go into the bundle, don't run on a TPU host."""
    machine = f"{sys.platform}/{platform.machine()}"
    if machine != "linux/x86_64":
        raise PublishError(
            f"this machine is {machine}, a TPU host linux/x86_64: publish from Linux on x86-64"
        )


def _lock(lock: str, tensorflow: bool) -> Path | None:
    if lock == "bare":
        return None
    return PROGRAM / "workload" / "locks" / (f"{lock}-tensorflow.txt" if tensorflow else f"{lock}.txt")


def _own(target: Target, lock: Path | None, work: Path, console: Console) -> dict[str, Path]:
    """Return the user's own code and its packages, by their paths in the bundle."""
    sources: dict[str, Path] = {}
    packages: list[Path] = []
    resolved: Path | None = None
    if target.code:
        sources["code.tar.gz"] = code.pack(ROOT / target.code, target.shown, work / "code.tar.gz", target.key)
        code.require(target.runs, ROOT / target.code, target.shown, target.hosts)
    if target.requirements:
        with console.status(f"resolving {target.requirements} (once for each content)"):
            resolved = requirements.resolve(ROOT / target.requirements, target.requirements, lock)
            packages = wheels.locked(resolved) if resolved.stat().st_size else packages
        sources["code-requirements.txt"] = resolved
        sources |= {f"wheels/{wheel.name}": wheel for wheel in packages}
    folder = ROOT / target.code if target.code else None
    requirements.require(
        target.runs, folder, target.requirements or "a requirements.txt of tpu:code", resolved
    )
    if sources:
        archive = sources.get("code.tar.gz")
        size = f"{target.shown}, {archive.stat().st_size / 1e6:.1f} MB" if archive else "none"
        console.print(f"own code: {size}, and {len(packages)} packages beyond the workload's", markup=False)
    return sources


def _build(
    lock: str, tensorflow: bool, python: Path, work: Path, own: Mapping[str, Path], console: Console
) -> Bundle:
    gcsfuse = shutil.which(
        "gcsfuse", path=f"{Path(sys.executable).parent}:{sys.exec_prefix}/bin"
    ) or shutil.which("gcsfuse")
    if gcsfuse is None:
        raise PublishError(
            f"there is no gcsfuse on PATH: run '{'tpu doctor' if INSTALLED else 'make setup'}'"
        )
    locked: list[Path] = []
    if desired := _lock(lock, tensorflow):
        with console.status(f"downloading the wheels of {desired.name} (once for each lock)"):
            locked = wheels.locked(desired)
    else:
        desired = work / "requirements.txt"
        desired.write_text(_NO_LOCK, "utf-8")
    script = work / startup.IN_BUNDLE
    script.write_text(startup.render(), "utf-8")
    sources = {
        startup.IN_BUNDLE: script,
        "python.tar.gz": python,
        "uv": Path(uv.find_uv_bin()),
        "gcsfuse": Path(gcsfuse).resolve(),
        "requirements.txt": desired,
        **{f"wheels/{wheel.name}": wheel for wheel in [*locked, wheels.build_workload(work / "wheels")]},
        **own,
    }
    if locked:
        with console.status("compiling what the trainer imports (once for each lock)"):
            sources["bytecode.tar.gz"] = bytecode.compiled(python, locked)
    return assemble(sources)


@contextmanager
def uploading(console: Console) -> Iterator[Callable[[int, int], None]]:
    """Show an upload's bar at a terminal; yield a function of bytes done and to do."""
    columns = (TextColumn("uploading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("upload", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _upload(bundle: Bundle, bucket: str, console: Console) -> Upload:
    with uploading(console) as shown:

        def show(done: int, total: int) -> None:
            if done == 0 and not console.is_terminal:
                console.print(f"uploading {total / 1e6:.0f} MB to gs://{bucket}")
            shown(done, total)

        result = upload(bundle, bucket, show)
    console.print(
        f"gs://{bucket}: {counted(result.uploaded, 'file')} uploaded ({result.uploaded_bytes / 1e6:.0f} MB), "
        f"{result.already_there} were there already"
    )
    return result
