"""Putting the stand-in where the Pulumi CLI looks for the gcp plugin."""

from __future__ import annotations

import shlex
import sys
from importlib import metadata
from pathlib import Path

from rehearsal.plugin.errors import StandInError

EXECUTABLE = "pulumi-resource-gcp"


def installed_version() -> str:
    """The version of the pulumi-gcp SDK, which is the plugin version that programs ask for."""
    return metadata.version("pulumi-gcp")


def plugin_folder(pulumi_home: Path) -> Path:
    """Where the CLI expects the plugin of this version."""
    return pulumi_home / "plugins" / f"resource-gcp-v{installed_version()}"


def install(pulumi_home: Path) -> Path:
    """Write a small script that starts the stand-in with this Python; returns its path.

    An official plugin that is there already is left alone, and that is an error: nobody should
    believe to have tested with the one and have tested with the other.
    """
    executable = plugin_folder(pulumi_home) / EXECUTABLE
    if executable.exists() and not is_standin(executable):
        raise StandInError(
            f"{executable} is not the stand-in: the official gcp plugin is installed there",
            fix="use it as it is, or give another --pulumi-home",
        )
    executable.parent.mkdir(parents=True, exist_ok=True)
    executable.write_text(_script(), encoding="utf-8")
    executable.chmod(0o755)
    return executable


def is_standin(executable: Path) -> bool:
    """Whether a plugin executable is the script that `install` writes."""
    with executable.open("rb") as file:
        return b"rehearsal.standin serve" in file.read(1024)


def _script() -> str:
    root = Path(__file__).parents[2]
    return (
        "#!/bin/sh\n"
        "# The stand-in for the official gcp provider plugin: see docs/standin.md.\n"
        f"PYTHONPATH={shlex.quote(str(root))}${{PYTHONPATH:+:$PYTHONPATH}} \\\n"
        f"exec {shlex.quote(sys.executable)} -m rehearsal.standin serve\n"
    )
