"""The cloud process's configuration file: JSON, written by `rehearsal.world`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.world import LAGS, Lags
from rehearsal.cloud.iam.iam import TOKEN_LIFETIME_S
from rehearsal.cloud.services.serviceusage import NEW_PROJECT
from rehearsal.cloud.services.tpu.catalog import ZONES
from rehearsal.errors import RehearsalError
from settings_schema.parser import Parser
from settings_schema.problem import listed


class CloudConfigError(RehearsalError):
    """The configuration file breaks rules."""


@dataclass(frozen=True)
class CloudConfig:
    """Configuration of the cloud process.

    Without `certificate` and `key` the front door speaks plain HTTP; without `image` there are no machines,
    so that TPU nodes can't be created. `hosts_file`, `ca_certificate`, `ca_bundle` and `ssh_public_key` go
    to the machines. Lags are virtual seconds, the lifetime of tokens real ones. Addresses are `HOST:PORT`;
    an empty `metadata` address leaves the metadata server out. `people`: accounts beside the owner, each
    with its `refresh_token` and `roles`, [role, resource] pairs, which the owner grants. With
    `control_planes`, a process beside this one runs those of clusters (rehearsal/kubernetes), and they wait
    for it. `builder`: the variables of the processes that Google's services run; without any, none of them
    run. `spark_python`: an interpreter with PySpark for batches, which fail without it; `function_python`:
    one with the functions framework, without which functions are taken to build and to start.
    """

    project: str
    directory: Path
    control: Path
    owner: str
    refresh_token: str
    number: str = "123456789012"
    zones: tuple[str, ...] = tuple(sorted(ZONES))
    front_door: str = "199.36.153.8:443"
    metadata: str = "169.254.169.254:80"
    people: dict[str, JsonObject] = field(default_factory=dict)
    certificate: Path | None = None
    key: Path | None = None
    image: Path | None = None
    hosts_file: Path | None = None
    ca_certificate: Path | None = None
    ca_bundle: Path | None = None
    ssh_public_key: str = ""
    enabled_apis: tuple[str, ...] = NEW_PROJECT
    currency: str = "USD"
    groups: dict[str, list[str]] = field(default_factory=dict)
    constraints: dict[str, list[str]] = field(default_factory=dict)
    lags: Lags = LAGS
    token_lifetime_s: float = TOKEN_LIFETIME_S
    clock_rate: float = 1.0
    control_planes: bool = False
    builder: dict[str, str] = field(default_factory=dict)
    spark_python: str = ""
    function_python: str = ""
    seed: int = 0

    @staticmethod
    def load(path: Path) -> CloudConfig:
        """Read a file. Raises CloudConfigError with all problems."""
        try:
            document = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise CloudConfigError(f"{path}: {error}") from None
        return parse(document)


def parse(document: JsonObject) -> CloudConfig:
    """Parse a configuration from JSON. Raises CloudConfigError with all problems."""
    parser = Parser()
    config = parser.section("", CloudConfig, document)
    if parser.problems:
        raise CloudConfigError(listed("the cloud's configuration", parser.problems))
    return config


def address(text: str) -> tuple[str, int]:
    """Split `HOST:PORT`; CloudConfigError for any other text."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise CloudConfigError(f"address {text!r} must be HOST:PORT")
    return host, int(port)
