"""Putting a stand-in where the Pulumi CLI looks for a provider plugin."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import cast

from rehearsal.providers.plugin.errors import StandInError
from rehearsal.providers.plugin.provider import Provider


@dataclass(frozen=True)
class Package:
    """A package of Pulumi's that has a stand-in."""

    name: str
    sdk: str  # the distribution that programs import
    provider: str  # the module of the class `Provider`

    @property
    def version(self) -> str:
        """The version of the installed SDK, which is the plugin version that programs require."""
        return metadata.version(self.sdk)

    @property
    def folder(self) -> str:
        """The folder's name, of the plugin of this version."""
        return f"resource-{self.name}-v{self.version}"

    @property
    def executable(self) -> str:
        """The name of the plugin's program."""
        return f"pulumi-resource-{self.name}"

    def place(self, pulumi_home: Path) -> Path:
        """Return the path at which the CLI expects the plugin's program."""
        return pulumi_home / "plugins" / self.folder / self.executable

    def load(self) -> Provider:
        """Return a stand-in of this package, importing only its own modules."""
        return cast(Provider, importlib.import_module(self.provider).Provider())


PACKAGES = {
    package.name: package
    for package in (
        Package("gcp", "pulumi-gcp", "rehearsal.providers.gcp.provider"),
        Package("kubernetes", "pulumi-kubernetes", "rehearsal.providers.kubernetes.provider"),
    )
}


def install(pulumi_home: Path, names: Iterable[str] = PACKAGES) -> list[Path]:
    """Write small scripts that start the stand-ins with this Python; returns their paths.

    An official plugin that is there already is left alone, and that is an error: nobody should
    believe to have tested with the one and have tested with the other.
    """
    packages = [PACKAGES[name] for name in names]
    places = [package.place(pulumi_home) for package in packages]
    for package, place in zip(packages, places, strict=True):
        if place.exists() and not is_standin(place):
            raise StandInError(
                f"{place} is not the stand-in: the official {package.name} plugin is installed there",
                fix="use it as it is (name the other packages), or give another --pulumi-home",
            )
    for package, place in zip(packages, places, strict=True):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(_script(package.name), encoding="utf-8")
        place.chmod(0o755)
    return places


def is_standin(executable: Path) -> bool:
    """Return True if a plugin executable is a script written by `install`."""
    with executable.open("rb") as file:
        return b"rehearsal.providers.gcp serve" in file.read(1024)


def _script(package: str) -> str:
    root = Path(__file__).parents[3]
    return (
        "#!/bin/sh\n"
        f"# The stand-in for the official {package} provider plugin: see docs/internals/standin.md.\n"
        f"PYTHONPATH={shlex.quote(str(root))}${{PYTHONPATH:+:$PYTHONPATH}} \\\n"
        # -P: the folder of the CLI's call may have a `rehearsal` of another version.
        f"exec {shlex.quote(sys.executable)} -P -m rehearsal.providers.gcp serve {package}\n"
    )
