"""Where settings come from: Pulumi, when it runs the program, or the file itself."""

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from infra.errors import InfraError, Problem, SettingsError
from infra.settings import yaml_file
from infra.settings.parser import parse
from infra.settings.schema import Settings

ROOT = Path(__file__).resolve().parents[2]


def from_pulumi(environment: str) -> Settings:
    """The settings of the stack that Pulumi is running."""
    from pulumi.runtime.config import CONFIG  # a third of a second, which commands without Pulumi don't wait

    return parse(environment, dict(CONFIG.get()), f"Pulumi.{environment}.yaml")


def path_of(environment: str, root: Path = ROOT) -> Path:
    """The file with an environment's settings. Raises InfraError where there is none."""
    path = root / f"Pulumi.{environment}.yaml"
    if not path.exists():
        known = sorted(each.name.split(".")[1] for each in root.glob("Pulumi.*.yaml"))
        fix = f"copy Pulumi.{known[0]}.yaml to it and edit" if known else "write it: see docs/settings.md"
        if near := difflib.get_close_matches(environment, known, 1):
            fix = f"perhaps {near[0]} was meant; else {fix}"
        listed = ", ".join(known) or "none"
        raise InfraError(f"{path.name} does not exist (environments: {listed})\n    fix: {fix}")
    return path


def from_file(environment: str, root: Path = ROOT, slices: Sequence[Mapping[str, Any]] = ()) -> Settings:
    """The settings in `Pulumi.<environment>.yaml` under `root`, read without Pulumi.

    Args:
        environment: its name.
        root: the project's folder.
        slices: further items of `tpu:slices`, which stand in no file.
    """
    name = f"Pulumi.{environment}.yaml"
    try:
        content = yaml_file.load(path_of(environment, root).read_text(encoding="utf-8"))
        config = content.get("config") if isinstance(content, dict) else None
        values, problems = _as_text(config) if isinstance(config, dict) else (None, [])
        problems += [_beside_config(*found) for found in yaml_file.unknown_keys(content)] if values else []
    except OSError as error:
        raise InfraError(f"{name} can't be read: {error.strerror}") from None
    # Beside what the scanner refuses: bytes that aren't UTF-8, a number that is none, endless nesting.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, RecursionError) as error:
        output = " ".join(str(error).replace(' in "<unicode string>",', " at").split())
        raise InfraError(f"{name} is not YAML for settings: {output}") from None
    if values is None:
        raise InfraError(f"{name} has no `config:` with settings under it: see docs/settings.md")
    if slices:
        values["tpu:slices"] = json.dumps([*json.loads(values.get("tpu:slices", "[]")), *slices])
    return parse(environment, values, name, problems)


def _beside_config(key: str, near: str) -> Problem:
    fix = f"perhaps {near} was meant" if near else "remove it, or move it under config:"
    return Problem(key, "a key beside config:", "settings stand under config:, and Pulumi skips others", fix)


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
