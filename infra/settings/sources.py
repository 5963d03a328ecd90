"""Where settings come from: Pulumi, when it runs the program, or the file itself."""

import json
from pathlib import Path
from typing import Any

import yaml
from pulumi.runtime.config import CONFIG

from infra.errors import InfraError, Problem, SettingsError
from infra.settings.parser import parse
from infra.settings.schema import Settings

ROOT = Path(__file__).resolve().parents[2]


def from_pulumi(environment: str) -> Settings:
    """The settings of the stack that Pulumi is running."""
    return parse(environment, dict(CONFIG.get()), f"Pulumi.{environment}.yaml")


def from_file(environment: str, root: Path = ROOT) -> Settings:
    """The settings in `Pulumi.<environment>.yaml` under `root`, read without Pulumi."""
    path = root / f"Pulumi.{environment}.yaml"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(sorted(p.name.split(".")[1] for p in root.glob("Pulumi.*.yaml"))) or "none"
        raise InfraError(
            f"{path.name} does not exist (environments: {known}): copy Pulumi.dev.yaml to it and edit"
        ) from None
    except yaml.YAMLError as error:
        raise InfraError(f"{path.name} is not YAML: {' '.join(str(error).split())}") from None
    config = content.get("config") if isinstance(content, dict) else None
    if not isinstance(config, dict):
        raise InfraError(f"{path.name} has no `config:` with settings under it: see docs/settings.md")
    return parse(environment, as_pulumi_hands_it_over(config, path.name), path.name)


def as_pulumi_hands_it_over(config: dict[Any, Any], source: str) -> dict[str, str]:
    """Keys → text, structures as JSON. Secrets are refused: no setting is one, and a file that holds
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
    if problems:
        raise SettingsError(source, sorted(problems))
    return values
