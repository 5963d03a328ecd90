"""Settings of a run: parse TOML into a frozen `Config`.

    workload train tiny.toml --set train.steps=20

A config may extend another: `base = "llama-3.1-8b.toml"`. A [model] with `module` names a module of the user.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from settings_schema.rules import above, at_least, between, one_of
from workload import folders
from workload.data import mixture
from workload.errors import ConfigError, Problem
from workload.model import adapters, points
from workload.model.adapters import LoraConfig
from workload.model.architecture import Architecture, violations
from workload.modules.config import ModuleConfig
from workload.runs import location
from workload.runs.vertex_ids import ID, IS_ID, IS_TENSORBOARD, TENSORBOARD
from workload.runs.wandb_run import IS_PROJECT, PROJECT
from workload.settings import build, matching, override, read, ruled
from workload.train import flags
from workload.train.compute import ComputeConfig
from workload.train.optimizer_config import OptimizerConfig


@dataclass(frozen=True)
class SourceConfig:
    """A source of several."""

    path: str  # as data.path
    weight: float = 1.0  # its share of the examples is weight / sum of all weights


@dataclass(frozen=True)
class DataConfig:
    """Token files and the length of their examples."""

    # folder of token files, below $DATA_DIR where that is set, or gs://BUCKET/FOLDER
    path: str = "."
    # several folders, instead of `path`: [{path = "chats", weight = 3}, {path = "text", weight = 1}]
    sources: tuple[SourceConfig, ...] = ()
    sequence_length: int = ruled(128, at_least(1))  # tokens of an example
    # tokens of conversations that count in the loss; "" if there are only documents
    loss: str = ruled("", one_of("", "answers", "all"))


@dataclass(frozen=True)
class TrainConfig:
    """Steps, batch, seed and initial weights."""

    steps: int = ruled(60, at_least(1))  # steps of the whole run
    batch_size: int = ruled(16, at_least(1))  # examples per step, over all devices
    accumulate: int = ruled(1, at_least(1))  # sequential parts of a step's batch
    seed: int = ruled(0, between(0, 2**31 - 1))  # seed of the parameters and of the data's order
    # initial weights: a Hugging Face folder, as data.path; or a run's step, "run:first@400", or @best, or by
    # URL, "run:gs://BUCKET/runs/first@400"; empty: random, from the seed
    init_from: str = ""
    # copied from the run of init_from: parameters; optimizer: parameters and optimizer state; step: both and
    # the step number
    init_with: str = ruled("parameters", one_of("parameters", "optimizer", "step"))


@dataclass(frozen=True)
class MeshConfig:
    """Devices as data x fsdp. Within a slice the axes run over ICI, across slices over DCN.

    `data` copies the parameters, `fsdp` splits them; a batch is split over both.
    """

    data: int = ruled(1, at_least(1))  # data-parallel groups within a slice; fsdp has chips / groups
    across_slices: str = ruled("data", one_of("data", "fsdp"))  # axis that spans slices


@dataclass(frozen=True)
class CheckpointConfig:
    """Schedule and retention of checkpoints."""

    # steps between checkpoints; 0: chosen from the cost of a save and the risk of a preemption
    every_steps: int = ruled(0, at_least(0))
    preemption_every_h: float = ruled(24.0, above(0))  # expected hours between preemptions of the run
    notice_s: float = ruled(30.0, at_least(0))  # seconds from a preemption notice to the end of the machine
    keep: int = ruled(3, at_least(1))  # newest complete checkpoints to retain
    # save after each evaluation with a lower loss than before, and retain the checkpoint with the lowest
    keep_best: bool = False
    timeout_s: int = ruled(300, at_least(10))  # seconds after which a save counts as failed
    # training time without a successful save before the run fails. A restart needs storage too, so failing
    # sooner gains nothing; failing later hides the error
    outage_s: float = ruled(1800.0, at_least(0))
    durable_every_h: float = ruled(24.0, at_least(0))  # hours between copies into the checkpoint bucket


@dataclass(frozen=True)
class ObserveConfig:
    """Monitoring; doesn't change results."""

    profile_from: int = ruled(0, at_least(0))  # first step of a trace for xprof; 0: none
    profile_steps: int = ruled(3, at_least(1))  # steps of the trace
    eval_path: str = ""  # folder of held-out tokens, as data.path; empty: none
    eval_every: int = ruled(100, at_least(1))  # steps between evaluations
    eval_batches: int = ruled(8, at_least(1))  # batches per evaluation, always the same ones
    strict: bool = False  # fail if a repeated step has another loss; else log an event
    # Vertex AI TensorBoard for the curves; empty: none
    tensorboard: str = ruled("", matching(TENSORBOARD, IS_TENSORBOARD))
    # TensorBoard experiment; empty: the run's name
    experiment: str = ruled("", matching(ID, IS_ID))
    # project of Weights & Biases for the curves; empty: none
    wandb: str = ruled("", matching(PROJECT, IS_PROJECT))


@dataclass(frozen=True)
class ClusterConfig:
    """Timeouts between workers."""

    start_timeout_s: int = ruled(120, at_least(1))  # time limit for all workers to connect
    heartbeat_timeout_s: int = ruled(20, at_least(10))  # silence after which a worker counts as dead
    shutdown_timeout_s: int = ruled(10, at_least(1))  # time limit for all workers to disconnect


@dataclass(frozen=True)
class Config:
    """Settings of `workload train`."""

    model: Architecture | ModuleConfig = field(default_factory=Architecture)
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig = TrainConfig()
    lora: LoraConfig = field(default_factory=LoraConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    mesh: MeshConfig = MeshConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    cluster: ClusterConfig = ClusterConfig()
    observe: ObserveConfig = ObserveConfig()

    @property
    def decoder(self) -> Architecture:
        """Architecture of a run of the decoder; not for a run of a module."""
        assert isinstance(self.model, Architecture)
        return self.model

    @property
    def decay_steps(self) -> int:
        """Last steps of the schedule wsd."""
        return self.optimizer.decay_steps or max(1, self.train.steps // 10)

    @property
    def weights(self) -> Path:
        """Folder of `train.init_from`, in a run of the decoder."""
        return folders.of_setting("train.init_from", self.train.init_from)

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the losses; a run can't continue with any of them changed.

        The path of the data is left out: its manifest's sha256 is compared instead.
        """
        identity = {name: asdict(getattr(self, name)) for name in ("model", "data", "optimizer", "train")}
        del identity["data"]["path"]
        if not isinstance(self.model, ModuleConfig):  # whose dropout differs between the parts of a batch
            del identity["train"]["accumulate"]
        identity["compute"] = {"dtype": self.compute.dtype, "reduce_dtype": self.compute.reduce_dtype}
        if sources := identity["data"].pop("sources"):
            identity["data"]["weights"] = [source["weight"] for source in sources]
        # Left out where they are off, as from runs that began before there were these settings.
        for name, keys in _YOUNG.items():
            section = getattr(type(self)(), name)
            for key in keys:
                if identity[name][key] == getattr(section, key):
                    del identity[name][key]
        if self.compute.products != "dtype":
            identity["compute"]["products"] = self.compute.products
        if self.lora.rank:
            identity["lora"] = {**asdict(self.lora), "targets": list(self.lora.targets)}
        return identity

    def arithmetic(self) -> dict[str, Any]:
        """Return the settings that change the losses by rounding only; a run may change them."""
        compute = self.compute
        return {
            "accumulate": self.train.accumulate,
            "attention": compute.attention,
            "remat": list(compute.remat),
            "examples_at_once": compute.examples_at_once,
            "keep_gathered": compute.keep_gathered,
            "loss_chunk_tokens": compute.loss_chunk_tokens,
            "flags": list(compute.flags),
            "quick_compile": compute.quick_compile,
            **({"max_logit": compute.max_logit} if compute.max_logit else {}),  # younger than others' records
        }


_YOUNG = {"data": ("loss",), "optimizer": ("name", "options", "decay_steps"), "train": ("init_with",)}
_DECODERS_ALONE = [
    (entry.name, entry.default)
    for entry in fields(ComputeConfig)
    if entry.name
    in (
        "attention",
        "max_logit",
        "remat",
        "examples_at_once",
        "keep_gathered",
        "loss_chunk_tokens",
        "reduce_dtype",
        "products",
    )
]

PACKAGED = resources.files("workload") / "configs"
FROM_WEIGHTS = "weights"
"""Value of `model` in place of a table: the model of `train.init_from`, also where a base has a table."""


def load(name: str, overrides: Sequence[str] = ()) -> Config:
    """Read a config and apply `key=value` overrides.

    Args:
        name: a path, or the name of a packaged config.
        overrides: like `train.steps=20`; the value is TOML, or a bare word.

    Raises:
        ConfigError: with every problem found.
    """
    table = read(name, PACKAGED)
    problems = override(table, overrides)
    if table.get("model") == FROM_WEIGHTS:
        del table["model"]
        if not table.get("train", {}).get("init_from"):
            rule, fix = "is of train.init_from, which isn't given", "e.g. train.init_from=Qwen3-8B"
            problems.append(Problem("model", f'"{FROM_WEIGHTS}"', rule, fix))
    model = table.get("model")
    if isinstance(model, dict) and "module" in model:
        config: Config = build(Config, {**table, "model": {}}, "", problems)
        config = replace(config, model=build(ModuleConfig, model, "model.", problems))
    else:
        config = build(Config, table, "", problems)
    if not problems:
        problems += _cross_checks(config)
    if problems:
        raise ConfigError(name, problems)
    return config


def _cross_checks(config: Config) -> list[Problem]:
    """Return violations of rules between keys."""
    model, optimizer, train = config.model, config.optimizer, config.train
    problems = violations(model) if isinstance(model, Architecture) else _of_module(config)
    decoder = isinstance(model, Architecture)
    problems += adapters.problems(config.lora, train.init_from, config.compute.products, decoder)
    if optimizer.warmup_steps >= train.steps:
        rule = f"must be less than train.steps, {train.steps}"
        fix = "warm up for a tenth of the run or less"
        problems.append(Problem("optimizer.warmup_steps", str(optimizer.warmup_steps), rule, fix))
    problems += _of_schedule(config) + _of_beginning(config)
    if config.checkpoint.keep_best and not config.observe.eval_path:
        rule = "needs observe.eval_path, a folder of held-out tokens"
        problems.append(Problem("checkpoint.keep_best", "true", rule, "set it, or remove keep_best"))
    if (optimizer.name, optimizer.options) != ("adamw", {}):
        from workload.train import optax_names  # imports JAX

        problems += optax_names.problems(optimizer)
    if train.batch_size % train.accumulate:
        rule = f"must divide train.batch_size, {train.batch_size}"
        problems.append(Problem("train.accumulate", str(train.accumulate), rule, "1, or a divisor"))
    problems += _of_sources(config.data)
    if problem := points.remat_problem(config.compute.remat):
        fix = 'e.g. ["full"], or ["save:attn_z", "save:mlp_act"]'
        problems.append(Problem("compute.remat", str(list(config.compute.remat)), problem, fix))
    if problem := flags.problem(config.compute.flags):
        fix = 'e.g. ["vmem", "layouts"]'
        problems.append(Problem("compute.flags", str(list(config.compute.flags)), problem, fix))
    return problems


def _of_sources(data: DataConfig) -> list[Problem]:
    """Return violations of `data.sources`, by the sources' names."""
    total = sum(max(source.weight, 0.0) for source in data.sources)
    problems, seen = [], set()
    for number, source in enumerate(data.sources):
        key, shown = f"data.sources[{number}]", repr(source.path)
        if source.weight <= 0 or source.weight * mixture.CYCLE < total:
            least = f"at least 1/{mixture.CYCLE:,} of the sum" if source.weight > 0 else "above 0"
            rule, fix = f"the weight of {shown} must be {least}", "remove the source, or give it a weight"
            problems.append(Problem(f"{key}.weight", str(source.weight), rule, fix))
        if source.path in seen:
            problems.append(Problem(f"{key}.path", shown, "each folder once", "add the weights"))
        seen.add(source.path)
    if data.sources and data.path != DataConfig.path:
        rule, fix = "must not be given beside data.sources", "name the folder in data.sources"
        problems.append(Problem("data.path", repr(data.path), rule, fix))
    return problems


def _of_schedule(config: Config) -> list[Problem]:
    """Return violations of rules of wsd's decay."""
    optimizer, steps = config.optimizer, config.train.steps
    given = str(optimizer.decay_steps)
    if optimizer.schedule != "wsd":
        rule, fix = "is of the schedule wsd", 'optimizer.schedule = "wsd", or remove it'
        return [Problem("optimizer.decay_steps", given, rule, fix)] if optimizer.decay_steps else []
    if optimizer.warmup_steps + config.decay_steps <= steps:
        return []
    rule = f"must leave optimizer.warmup_steps, {optimizer.warmup_steps}, of train.steps, {steps}"
    fix = f"at most {max(1, steps - optimizer.warmup_steps)}, or warm up for less"
    return [Problem("optimizer.decay_steps", str(config.decay_steps), rule, fix)]


def _of_beginning(config: Config) -> list[Problem]:
    """Return violations of rules of the weights that a run begins with."""
    train, problems = config.train, []
    begin, is_run = train.init_from, train.init_from.startswith("run:")
    if (
        begin
        and (is_run or isinstance(config.model, ModuleConfig))
        and not location.CHECKPOINT.fullmatch(begin)
    ):
        problems.append(Problem("train.init_from", repr(begin), location.IS_CHECKPOINT, "e.g. run:first@400"))
    if train.init_with == "parameters":
        return problems
    given = f'"{train.init_with}"'
    if not is_run:
        rule = f"is of a run in train.init_from, which is {begin!r}"
        problems.append(Problem("train.init_with", given, rule, "e.g. train.init_from=run:first@400"))
    return problems


def _of_module(config: Config) -> list[Problem]:
    """Return settings of the decoder's step that a module decides itself."""
    given = {f"compute.{name}": (getattr(config.compute, name), default) for name, default in _DECODERS_ALONE}
    given |= {"lora.quantize": (config.lora.quantize, "none")}
    rule, fix = "is of the decoder: a module decides it itself", "remove it"
    problems = [
        Problem(key, repr(value), rule, fix) for key, (value, default) in given.items() if value != default
    ]
    settings = config.model.settings if isinstance(config.model, ModuleConfig) else {}
    try:
        json.dumps(settings, allow_nan=False)
    except (TypeError, ValueError) as error:  # such as a date, which a run's record can't hold
        rule = f"must be texts, finite numbers, truth values, lists and tables: {error}"
        problems.append(Problem("model.settings", str(settings), rule, "write it as text"))
    return problems
