"""Sources of settings: Pulumi, when it runs the program, or the file itself."""

import difflib
import json
from pathlib import Path
from typing import Any

from infra.errors import InputError, Problem, SettingsError

PROGRAM = Path(__file__).resolve().parents[2]
"""Folder of the packages: a checkout's, or the one that the wheel is installed into."""
BESIDE = PROGRAM / "infra" / "checkout"
"""Folder in which a wheel holds what the program reads of a checkout beside its packages."""
INSTALLED = BESIDE.is_dir()
"""True for the program of a wheel, False for a checkout's."""


def part(path: str | Path, program: Path = PROGRAM) -> Path:
    """Return a file or folder of the checkout by its path there."""
    beside = program / BESIDE.relative_to(PROGRAM) / path
    return beside if beside.exists() else program / path


def project_folder(start: Path) -> Path:
    """Return the nearest folder, from `start` upwards, that has an environment's file; else `start`."""
    return next((folder for folder in (start, *start.parents) if environments(folder)), start)


def environments(root: Path | None = None) -> list[str]:
    """Return the names of the environments that have a file, sorted."""
    return sorted(path.name.split(".")[1] for path in (root or ROOT).glob("Pulumi.*.yaml"))


ROOT = project_folder(Path.cwd()) if INSTALLED else PROGRAM
"""Folder of the environments' files: the checkout, or the one around the working directory."""


def path_of(environment: str, root: Path = ROOT) -> Path:
    """Return the file with an environment's settings. Raises InputError where there is none."""
    path = root / f"Pulumi.{environment}.yaml"
    if not path.exists():
        known = environments(root)
        fix = f"cd into its folder, or write it in {root}: see docs/reference/settings.md"
        fix = f"copy Pulumi.{known[0]}.yaml to it and edit" if known else fix
        if near := difflib.get_close_matches(environment, known, 1):
            fix = f"perhaps {near[0]} was meant; else {fix}"
        listed = ", ".join(known) or "none"
        raise InputError(f"{path.name} does not exist (environments: {listed})\n    fix: {fix}")
    return path


def as_pulumi_hands_it_over(config: dict[Any, Any], source: str) -> dict[str, str]:
    """Keys → text, structures as JSON; raises SettingsError for what can't be handed over."""
    values, problems = _as_text(config)
    if problems:
        raise SettingsError(source, sorted(problems))
    return values


def _as_text(config: dict[Any, Any]) -> tuple[dict[str, str], list[Problem]]:
    """Keys → text, and what has none. Secrets are refused: no setting is one, and a file that holds
    any can't be read without Pulumi.
    """
    values: dict[str, str] = {}
    problems: list[Problem] = []
    for key, value in config.items():
        if value is None:
            problems.append(Problem(str(key), "nothing", "a key has a value", "write one, or remove the key"))
        elif isinstance(value, dict) and list(value) == ["secure"]:
            problems.append(Problem(str(key), "a secret", "no setting is a secret", "write it in plain text"))
        elif isinstance(value, str):
            values[str(key)] = value
        else:
            values[str(key)] = json.dumps(value, default=str)
    return values, problems
