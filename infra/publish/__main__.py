"""`tpu publish ENV`: build the bundle, upload it, record its id."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import uv
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from infra.errors import InfraError
from infra.layers.tpu import startup
from infra.publish import bytecode, code, interpreter, requirements, wheels
from infra.publish.bundle import Bundle, assemble
from infra.publish.environment import Target, target_of
from infra.publish.errors import PublishError
from infra.publish.upload import Upload, upload
from infra.settings.record import record

__all__ = ["main"]

LOCKS = ("tpu", "cpu", "bare")
_NO_LOCK = "# No packages besides the workload's own wheel.\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.lock not in LOCKS:  # argparse looks at no default
        parser.error(
            f"$TPU_LOCK: invalid choice: {options.lock!r} (choose from {', '.join(map(repr, LOCKS))})"
        )
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        report = _publish(options, console)
    except InfraError as error:
        console.print(f"publish: {error}", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("publish: stopped; what is uploaded already will not be uploaded again")
        return 130
    if options.json:
        print(json.dumps(report, indent=2))
    return 0


def default_lock() -> str:
    """Return the default packages: of a real host, but in a rehearsal."""
    return os.environ.get("TPU_LOCK") or "tpu"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tpu publish",
        description="Put what the hosts of ENV install into its bucket, by content hash.",
        epilog="example: tpu publish dev",
    )
    parser.add_argument("environment", metavar="ENV", help="the environment, as in Pulumi.<ENV>.yaml")
    parser.add_argument(
        "--lock",
        choices=LOCKS,
        default=default_lock(),
        help="packages for a real host (tpu), a rehearsed one (cpu), or none at all (bare); "
        "default: $TPU_LOCK, or tpu where that isn't set",
    )
    parser.add_argument(
        "--tensorflow", action="store_true", help="with TensorFlow, whatever tpu:tensorflow says"
    )
    parser.add_argument("--bucket", help="another bucket; ENV's settings are neither read nor changed then")
    parser.add_argument("--json", action="store_true", help="print a report as JSON on standard output")
    parser.add_argument("--dry-run", action="store_true", help="build the bundle; upload and record nothing")
    return parser


@dataclass(frozen=True)
class Published:
    """A bundle, and what uploading it took."""

    bundle: Bundle
    interpreter: str
    upload: Upload


def publish(target: Target, lock: str, console: Console, again: str, upload_it: bool = True) -> Published:
    """Build a bundle and upload it.

    Args:
        target: where to, and what of the user's own it holds.
        lock: which packages, of `LOCKS`.
        console: for progress.
        again: the command to type once what is wrong is mended.
        upload_it: False to build it only.

    Raises:
        PublishError: what is wrong with the user's own code, or with this machine.
    """
    _check_machine()
    with tempfile.TemporaryDirectory(prefix="publish.") as work:
        # First: what is wrong with the user's own is the user's to mend.
        try:
            own = _own(target, _lock(lock, target.tensorflow), Path(work), console)
        except PublishError as error:
            raise PublishError(f"{error}. Nothing was published. Next: {again}") from error
        chosen = interpreter.choose(for_tpu=lock == "tpu")
        console.print(f"interpreter: {chosen.why}", markup=False)
        bundle = _build(lock, target.tensorflow, chosen.archive, Path(work), own, console)
        console.print(f"bundle: {bundle.id}: {len(bundle.files)} files, {bundle.size_bytes / 1e6:.0f} MB")
        done = _upload(bundle, target.bucket, console) if upload_it else Upload(0, 0, 0)
    return Published(bundle, chosen.why, done)


def _publish(options: argparse.Namespace, console: Console) -> dict[str, object]:
    began = time.monotonic()
    _check_machine()
    target = Target(options.bucket, options.tensorflow, None, None, {})
    if options.bucket is None:
        target = target_of(options.environment, wheels.ROOT)
        target = replace(target, tensorflow=options.tensorflow or target.tensorflow)
    again = f"tpu publish {options.environment}"
    published = publish(target, options.lock, console, again, upload_it=not options.dry_run)
    bundle, done = published.bundle, published.upload
    if options.dry_run:
        console.print("dry run: nothing is uploaded, nothing is recorded")
    elif options.bucket is None and record(options.environment, "tpu:bundle", bundle.id, wheels.ROOT):
        console.print(f"Pulumi.{options.environment}.yaml: tpu:bundle is set")
        console.print(f"next: pulumi up -s {options.environment}")
    return {
        "bundle": bundle.id,
        "bucket": target.bucket,
        "lock": options.lock,
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
    return wheels.ROOT / "workload" / "locks" / (f"{lock}-tensorflow.txt" if tensorflow else f"{lock}.txt")


def _own(target: Target, lock: Path | None, work: Path, console: Console) -> dict[str, Path]:
    """Return the user's own code and its packages, by their paths in the bundle."""
    sources: dict[str, Path] = {}
    packages: list[Path] = []
    if target.code:
        sources["code.tar.gz"] = code.pack(
            wheels.ROOT / target.code, target.shown, work / "code.tar.gz", target.key
        )
        code.require(target.runs, wheels.ROOT / target.code, target.shown)
    if target.requirements:
        with console.status(f"resolving {target.requirements} (once for each content)"):
            desired = requirements.resolve(wheels.ROOT / target.requirements, target.requirements, lock)
            packages = wheels.locked(desired) if desired.stat().st_size else packages
        sources["code-requirements.txt"] = desired
        sources |= {f"wheels/{wheel.name}": wheel for wheel in packages}
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
        raise PublishError("there is no gcsfuse on PATH: run 'make setup'")
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


def _upload(bundle: Bundle, bucket: str, console: Console) -> Upload:
    columns = (TextColumn("uploading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("upload", total=None)

        def show(done: int, total: int) -> None:
            if done == 0 and not console.is_terminal:
                console.print(f"uploading {total / 1e6:.0f} MB to gs://{bucket}")
            progress.update(task, completed=done, total=total)

        result = upload(bundle, bucket, show)
    console.print(
        f"gs://{bucket}: {result.uploaded} files uploaded ({result.uploaded_bytes / 1e6:.0f} MB), "
        f"{result.already_there} were there already"
    )
    return result


if __name__ == "__main__":
    sys.exit(main())
