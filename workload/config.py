"""The trainer's settings: TOML in, frozen dataclasses out, every problem at once.

    workload train tiny.toml --set train.steps=20

Each field carries its rule beside it. Unknown keys are refused with the nearest known one.
"""

import difflib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

from workload.errors import ConfigError, Problem

Rule = tuple[str, Callable[[Any], bool]]


def _at_least(low: float) -> Rule:
    return f"must be at least {low:g}", lambda value: value >= low


def _between(low: float, high: float) -> Rule:
    return f"must lie between {low:g} and {high:g}", lambda value: low <= value <= high


def _one_of(*choices: str) -> Rule:
    return f"must be one of {', '.join(choices)}", lambda value: value in choices


def _above(low: float) -> Rule:
    return f"must be greater than {low:g}", lambda value: value > low


def _ruled(default: Any, rule: Rule) -> Any:
    return field(default=default, metadata={"rule": rule})


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer: RMSNorm before, RoPE, SwiGLU."""

    layers: int = _ruled(2, _at_least(1))
    d_model: int = _ruled(128, _at_least(2))  # width of the residual stream
    heads: int = _ruled(4, _at_least(1))
    d_ff: int = _ruled(384, _at_least(1))  # width inside the feed-forward block
    rope_theta: float = _ruled(10_000.0, _above(0))
    dtype: str = _ruled("float32", _one_of("float32", "bfloat16"))  # of activations; parameters stay float32


@dataclass(frozen=True)
class DataConfig:
    """Which token files, and how they are cut into examples."""

    path: str = "."  # folder that holds manifest.json; relative to $DATA_DIR where that is set
    sequence_length: int = _ruled(128, _at_least(1))  # tokens that a position can look back on


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with a linear warm-up, a cosine decay and clipping by the global norm."""

    learning_rate: float = _ruled(1e-3, _above(0))  # at the end of the warm-up
    final_fraction: float = _ruled(0.1, _between(0, 1))  # of learning_rate, at the last step
    warmup_steps: int = _ruled(10, _at_least(0))
    weight_decay: float = _ruled(0.1, _at_least(0))  # not on norms
    beta1: float = _ruled(0.9, _between(0, 1))
    beta2: float = _ruled(0.95, _between(0, 1))
    clip_norm: float = _ruled(1.0, _above(0))


@dataclass(frozen=True)
class TrainConfig:
    """How long, how much a step, and from which seed."""

    steps: int = _ruled(60, _at_least(1))
    batch_size: int = _ruled(16, _at_least(1))  # examples a step, over all devices
    seed: int = _ruled(0, _between(0, 2**31 - 1))  # of the parameters and of the data's order


@dataclass(frozen=True)
class CheckpointConfig:
    """When to save and what to keep."""

    every_steps: int = _ruled(10, _at_least(1))
    keep: int = _ruled(3, _at_least(1))  # newest complete checkpoints that are left standing
    timeout_s: int = _ruled(300, _at_least(10))  # for one save, before the run ends as failed


@dataclass(frozen=True)
class ClusterConfig:
    """How long workers wait for one another."""

    start_timeout_s: int = _ruled(120, _at_least(1))  # for all to meet at the coordinator
    heartbeat_timeout_s: int = _ruled(20, _at_least(10))  # silence after which a worker counts as dead
    shutdown_timeout_s: int = _ruled(10, _at_least(1))  # for all to leave


@dataclass(frozen=True)
class Config:
    """Everything that `workload train` can be told by a file."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig = TrainConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    cluster: ClusterConfig = ClusterConfig()

    def identity(self) -> dict[str, Any]:
        """What the losses depend on: a run may not go on with any of it changed.

        Where the data lies is not part of it; its manifest's sha256 is compared instead.
        """
        identity = {name: asdict(getattr(self, name)) for name in ("model", "data", "optimizer", "train")}
        del identity["data"]["path"]
        return identity


def packaged() -> list[str]:
    """Names of the configs that ship with the package."""
    folder = resources.files("workload") / "configs"
    return sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(name: str, overrides: Sequence[str] = ()) -> Config:
    """Reads a config and applies `key=value` overrides.

    Args:
        name: a path, or the name of a packaged config.
        overrides: like `train.steps=20`; the value is TOML, or a bare word.

    Raises:
        ConfigError: with every problem found.
    """
    path = Path(name)
    if path.is_file():
        text = path.read_text()
    elif name in packaged():
        text = (resources.files("workload") / "configs" / name).read_text()
    else:
        known = ", ".join(packaged())
        raise ConfigError(
            name,
            [Problem("CONFIG", name, "no such file or packaged config", f"give a path, or one of {known}")],
        )
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        fix = "see https://toml.io for the syntax"
        raise ConfigError(name, [Problem("CONFIG", name, f"is not TOML: {error}", fix)]) from None
    problems = _override(table, overrides)
    config: Config = _build(Config, table, "", problems)
    if not problems:
        problems += _cross_checks(config)
    if problems:
        raise ConfigError(name, problems)
    return config


def _override(table: dict[str, Any], overrides: Sequence[str]) -> list[Problem]:
    problems = []
    for override in overrides:
        key, equals, text = override.partition("=")
        *parents, leaf = key.strip().split(".")
        if not equals or not leaf:
            problems.append(Problem("--set", override, "must read key=value", "e.g. --set train.steps=20"))
            continue
        target = table
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                problems.append(Problem("--set", override, f"{parent} is not a table", "name a table.key"))
                break
        else:
            target[leaf] = _toml_value(text.strip())
    return problems


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word, as a shell leaves it


def _build(kind: type, table: Mapping[str, Any], prefix: str, problems: list[Problem]) -> Any:
    """Makes a `kind` from a TOML table, adding to `problems` whatever doesn't fit."""
    hints = get_type_hints(kind)
    known = {entry.name: entry for entry in fields(kind)}
    for key in table.keys() - known.keys():
        nearest = difflib.get_close_matches(key, known, n=1)
        fix = f"did you mean {prefix}{nearest[0]}?" if nearest else f"remove it; known are {', '.join(known)}"
        problems.append(Problem(f"{prefix}{key}", _shown(table[key]), "unknown key", fix))
    values: dict[str, Any] = {}
    for key, entry in known.items():
        if key not in table:
            continue
        value, hint, path = table[key], hints[key], f"{prefix}{key}"
        if is_dataclass(hint):
            if isinstance(value, dict):
                values[key] = _build(hint, value, f"{path}.", problems)  # type: ignore[arg-type]
            else:
                problems.append(Problem(path, _shown(value), "must be a table", f"write [{path}]"))
            continue
        if hint is float and type(value) is int:
            value = float(value)
        if type(value) is not hint:
            rule = f"must be {_NOUNS[hint]}, not {_NOUNS.get(type(value), type(value).__name__)}"
            problems.append(Problem(path, _shown(value), rule, f"the default is {_shown(entry.default)}"))
            continue
        rule, holds = entry.metadata.get("rule", ("", lambda _: True))
        if not holds(value):
            problems.append(Problem(path, _shown(value), rule, f"the default is {_shown(entry.default)}"))
            continue
        values[key] = value
    return kind(**values)


_NOUNS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", list: "a list"}


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)


def _cross_checks(config: Config) -> list[Problem]:
    """Rules that more than one key takes part in."""
    problems = []
    model, optimizer, train = config.model, config.optimizer, config.train
    if model.d_model % model.heads:
        rule = f"must be a multiple of model.heads, {model.heads}"
        fix = f"{model.d_model // model.heads * model.heads or model.heads} would do"
        problems.append(Problem("model.d_model", str(model.d_model), rule, fix))
    elif model.d_model // model.heads % 2:
        rule = f"leaves heads of {model.d_model // model.heads}; RoPE turns pairs, so it must be even"
        problems.append(Problem("model.heads", str(model.heads), rule, f"{model.d_model // 2} or a divisor"))
    if optimizer.warmup_steps >= train.steps:
        rule = f"must be less than train.steps, {train.steps}"
        fix = "warm up for a tenth of the run or less"
        problems.append(Problem("optimizer.warmup_steps", str(optimizer.warmup_steps), rule, fix))
    return problems
