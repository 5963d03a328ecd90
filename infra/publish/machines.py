"""Bundles of the layers' own machines: start-up script, interpreter, wheels, Debian packages."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import uv

from infra.core.environment import layers_on
from infra.core.layer import MachineBundle
from infra.engine.settings import from_file
from infra.layers.tpu import startup
from infra.publish import debian, interpreter, wheels
from infra.publish.bundle import Bundle, assemble
from infra.settings.record import record
from infra.settings.sources import ROOT, part
from views.counts import counted

__all__ = ["build", "publish"]


def publish(
    environment: str,
    send: Callable[[Bundle], object],
    report: Callable[[str], object],
    *,
    recorded: bool = True,
    root: Path = ROOT,
) -> dict[str, str]:
    """Build the bundles of an environment's layers, send them, and record their ids; ids by setting.

    Without `recorded` the settings' file stays as it is. Raises PublishError.
    """
    published: dict[str, str] = {}
    for layer in layers_on(from_file(environment, root)):
        if (declared := layer.hooks.bundle) is None:
            continue
        with tempfile.TemporaryDirectory(prefix="publish.") as work:
            bundle = build(declared, Path(work))
            files = counted(len(bundle.files), "file")
            report(f"{declared.key}: {bundle.id}: {files}, {bundle.size_bytes / 1e6:.0f} MB")
            send(bundle)
        published[declared.key] = bundle.id
        if recorded and record(environment, declared.key, bundle.id, root):
            report(f"Pulumi.{environment}.yaml: {declared.key} is set")
    return published


def build(declared: MachineBundle, work: Path) -> Bundle:
    """Build a layer's bundle: the same id for the same script, locks and interpreter. Raises PublishError."""
    lock, script = part(declared.wheels), work / startup.IN_BUNDLE
    script.write_text(declared.script(), "utf-8")
    packages = debian.locked(part(declared.packages))
    archives = {
        f"{name}.tar.gz": debian.archive([package for package in packages if package.archive == name])
        for name in dict.fromkeys(package.archive for package in packages)
    }
    return assemble({
        startup.IN_BUNDLE: script,
        "python.tar.gz": interpreter.choose().archive,
        "uv": Path(uv.find_uv_bin()),
        "requirements.txt": lock,
        **{f"wheels/{wheel.name}": wheel for wheel in wheels.locked(lock)},
        **archives,
    })  # fmt: skip
