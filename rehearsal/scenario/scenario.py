"""Scenario files: what a rehearsal does, in order. The schema is the dataclasses here and in steps.py."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from rehearsal.cloud.core.world import Lags
from rehearsal.cloud.iam.iam import TOKEN_LIFETIME_S
from rehearsal.errors import ScenarioError
from rehearsal.scenario.reading import Problems, convert, nearest, read
from rehearsal.scenario.steps import KINDS, Step
from rehearsal.world.snapshot import Text

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"


@dataclass(frozen=True)
class Header:
    """Every key of a scenario but its steps."""

    title: str
    environment: str = "dev"
    clock: float = 20.0  # virtual seconds per real second, for operations
    grant_lag_s: float = Lags.grant_s  # real seconds until a grant or its end is felt
    account_lag_s: float = Lags.account_s  # real seconds until a new service account shows
    api_lag_s: float = Lags.api_s  # real seconds until an API answers that has been enabled
    token_lifetime_s: float = TOKEN_LIFETIME_S  # real seconds that an access token is good for
    seed: int | None = None  # random moments are drawn from it; left out: another one each time
    prepare: tuple[str, ...] = ()  # commands run before, where package registries are reached
    control_planes: bool = False  # real ones behind GKE clusters, where `tools/setup.sh kubernetes` ran
    runtimes: tuple[Literal["spark", "functions"], ...] = ()  # what batches and functions run with
    settings: dict[str, Any] = field(default_factory=dict)  # laid over the environment's `config` block
    text: Text = field(default_factory=Text)  # what the data disk's tokens are made of

    def check(self) -> Iterator[str]:
        """Time must pass, and never back."""
        if self.clock <= 0:
            yield f"clock: {self.clock:g} is not positive"
        for name in ("grant_lag_s", "account_lag_s", "api_lag_s"):
            if (lag_s := getattr(self, name)) < 0:
                yield f"{name}: {lag_s:g} is negative"
        if self.token_lifetime_s <= 0:
            yield f"token_lifetime_s: {self.token_lifetime_s:g} is not positive"

    @property
    def cloud(self) -> dict[str, float]:
        """What goes into the cloud's configuration as it is."""
        keys = ("grant_lag_s", "account_lag_s", "api_lag_s", "token_lifetime_s")
        return {"clock_rate": self.clock, **{key: getattr(self, key) for key in keys}}


@dataclass(frozen=True)
class Scenario:
    """A file that was read and found good; `seed` is drawn already."""

    path: Path
    header: Header
    seed: int
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem


def own() -> list[Path]:
    """The files of the scenarios that come with the project."""
    return sorted(SCENARIOS.glob("*.yaml"))


def find(name: str) -> Path:
    """A file's path, or the project's own scenario of that name; ScenarioError lists those there are."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or "/" in name:
        if not path.is_file():
            raise ScenarioError(f"there is no file {path}", "tpu rehearsal list")
        return path
    ours = SCENARIOS / f"{name}.yaml"
    if not ours.is_file():
        known = [each.stem for each in own()]
        raise ScenarioError(f"there is no scenario {name!r}{nearest(name, known)}", "tpu rehearsal list")
    return ours


def load(path: Path, seed: int | None = None) -> Scenario:
    """Read a scenario; ScenarioError with every problem at once. `seed` wins over the file's."""
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as broken:  # ValueError: not UTF-8, or no such date
        raise ScenarioError(f"{path} can't be read: {broken}") from broken
    problems = Problems()
    if not isinstance(document, dict):
        raise ScenarioError(f"{path}: expected a mapping with `title` and `steps`")
    listed = document.pop("steps", None)
    header = read(Header, document, "scenario", problems)
    steps = read_steps(listed, problems)
    if problems.lines or header is None:
        lines = "\n".join(f"  {line}" for line in problems.lines)
        raise ScenarioError(
            f"{path} breaks {len(problems.lines)} rule(s):\n{lines}", "docs/rehearsal.md has the schema"
        )
    drawn = seed if seed is not None else header.seed
    return Scenario(path, header, random.SystemRandom().randrange(10**6) if drawn is None else drawn, steps)


def read_steps(listed: object, problems: Problems) -> tuple[Step, ...]:
    """`- kind: fields` for each line."""
    if not isinstance(listed, list) or not listed:
        problems.add("scenario.steps", "expected a list of at least one step")
        return ()
    steps: list[Step] = []
    for number, entry in enumerate(listed):
        path = f"steps[{number}]"
        if isinstance(entry, str):  # a step without fields: `- survived`
            entry = {entry: None}
        if not isinstance(entry, dict) or len(entry) != 1:
            problems.add(path, "expected one `kind: fields`")
            continue
        kind, value = next(iter(entry.items()))
        if kind not in KINDS:
            problems.add(path, f"unknown step {kind!r}{nearest(str(kind), KINDS)}")
            continue
        if kind == "settings":
            value = {"set": convert(dict, value, f"{path}.settings", problems)}
        step = read(KINDS[kind], value, f"{path}.{kind}", problems)
        if step is not None:
            steps.append(step)
    return tuple(steps)
