"""Scenarios: Python modules with a `SCENARIO`; the first line of the docstring is the title."""

from __future__ import annotations

import difflib
import random
import runpy
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rehearsal.cloud.core.world import LAGS, Lags
from rehearsal.cloud.iam.iam import TOKEN_LIFETIME_S
from rehearsal.errors import ScenarioError
from rehearsal.scenario.step import Step
from rehearsal.world.snapshot import Text

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A scenario and the world that it needs; `path` and `title` are set by `load`.

    `settings` are laid over the environment's `config` block. `prepare`: commands that run before, where
    package registries are reached. `control_planes`: real ones behind GKE clusters, if
    `tools/setup.sh kubernetes` ran. `text`: source of the data disk's tokens.
    """

    steps: tuple[Step, ...]
    environment: str = "dev"
    clock: float = 20.0  # virtual seconds per real second, for operations
    lags: Lags = LAGS  # virtual seconds until what Google has accepted holds
    token_lifetime_s: float = TOKEN_LIFETIME_S  # real seconds until an access token expires
    seed: int | None = None  # of the random moments; None: drawn at each start
    prepare: tuple[str, ...] = ()
    control_planes: bool = False
    runtimes: tuple[Literal["spark", "functions"], ...] = ()  # for batches and functions
    settings: Mapping[str, Any] = field(default_factory=dict)
    text: Text = field(default_factory=Text)
    path: Path = Path()
    title: str = ""

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("steps: at least one is required")
        for name in ("clock", "token_lifetime_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name):g} is not positive")
        for name, lag_s in asdict(self.lags).items():
            if lag_s < 0:
                raise ValueError(f"lags.{name}: {lag_s:g} is negative")

    @property
    def name(self) -> str:
        """Name of the file, without its ending, `-` for `_`."""
        return name_of(self.path)

    @property
    def cloud(self) -> dict[str, Any]:
        """Entries of the cloud's configuration."""
        lags, lifetime_s = asdict(self.lags), self.token_lifetime_s
        return {"clock_rate": self.clock, "lags": lags, "token_lifetime_s": lifetime_s}

    @property
    def locks(self) -> tuple[str, ...]:
        """Locks of the bundles that the steps publish; a guide publishes the hosts' default."""
        steps = (step for step in self.steps if step.kind in ("publish", "guide"))
        return tuple(dict.fromkeys(str(step.arguments.get("lock", "cpu")) for step in steps))


def own() -> list[Path]:
    """Return the files of the project's own scenarios."""
    return sorted(SCENARIOS.glob("*.py"))


def name_of(path: Path) -> str:
    """Return the scenario's name on the command line."""
    return path.stem.replace("_", "-")


def find(name: str) -> Path:
    """Return the file `name`, or the project's own scenario `name`; ScenarioError if there is none."""
    path = Path(name)
    if path.suffix == ".py" or "/" in name:
        if not path.is_file():
            raise ScenarioError(f"no file {path}", "tpu rehearsal list")
        return path
    scenarios = {name_of(path): path for path in own()}
    if name not in scenarios:
        raise ScenarioError(f"no scenario {name!r}{nearest(name, scenarios)}", "tpu rehearsal list")
    return scenarios[name]


def load(path: Path, seed: int | None = None) -> Scenario:
    """Run a scenario's module and return its SCENARIO; `seed` replaces the module's.

    Raises ScenarioError with file and line if the module fails.
    """
    try:
        module = runpy.run_path(str(path))
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else 1
        raise ScenarioError(
            f"{path}:{line}: {error}", "docs/internals/scenarios.md lists the steps"
        ) from error
    scenario, title = module.get("SCENARIO"), (module.get("__doc__") or "").strip().partition("\n")[0]
    if not isinstance(scenario, Scenario) or not title:
        raise ScenarioError(
            f"{path}: needs a docstring and SCENARIO = Scenario(…)", "docs/internals/scenarios.md"
        )
    seeds = (seed, scenario.seed, random.SystemRandom().randrange(10**6))
    drawn = next(number for number in seeds if number is not None)
    return replace(scenario, path=path, title=title.rstrip("."), seed=drawn)


def nearest(name: str, known: Mapping[str, Any] | list[str]) -> str:
    """Return `; did you mean X?`, or the choices, or "" without choices."""
    matches = difflib.get_close_matches(name, list(known), 1, 0.6)
    if matches:
        return f"; did you mean {matches[0]}?"
    return f"; known: {', '.join(known)}" if known else ""
