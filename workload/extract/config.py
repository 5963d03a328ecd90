"""Settings of an extraction: a TOML file, overrides on the command line, rules beside each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources

from settings_schema.rules import at_least, one_of
from workload import settings
from workload.errors import ConfigError, Problem
from workload.settings import WORDS, ruled


@dataclass(frozen=True)
class ModelConfig:
    """Weights to use."""

    # a Hugging Face folder below $DATA_DIR, gs://BUCKET/FOLDER, or a training run's step, "run:first@400",
    # or by URL, "run:gs://BUCKET/runs/first@400"
    weights: str = ""


@dataclass(frozen=True)
class ExtractConfig:
    """Tensors to keep, and their computation."""

    # points to store, "a,b" or a list: "resid_post.12", "mlp_out.*", "final_norm"; "attn_z.3.h5": one head;
    # or a regular expression on whole names, "re:resid_(pre|post)\\.[0-7]"
    points: WORDS = ()
    # tokens to store of each document: "all", "last", "every:8" (0, 8, …), "role:assistant" (with --chat),
    # or numbers: "5" from the beginning, "-2" from the end; several, "last,0" or a list, store their union
    positions: WORDS = ("all",)
    dtype: str = ruled("bfloat16", one_of("float32", "bfloat16"))  # dtype of computation and shards
    batch_tokens: int = ruled(16384, at_least(128))  # approximate tokens of a batch, over all chips
    # tokens of a packed row; 0: the shortest with little padding
    row_tokens: int = ruled(0, at_least(0))
    shard_bytes: int = ruled(1_000_000_000, at_least(1), most=2**53)  # approximate size of a shard


@dataclass(frozen=True)
class Config:
    """All settings of an extraction."""

    model: ModelConfig = ModelConfig()
    extract: ExtractConfig = ExtractConfig()


PACKAGED = resources.files("workload") / "extract" / "configs"


def load(name: str, overrides: Sequence[str] = ()) -> Config:
    """Read a config, a path or a packaged one, and apply `key=value` overrides.

    Raises:
        ConfigError: with every problem found.
    """
    table = settings.read(name, PACKAGED)
    problems = settings.override(table, overrides)
    config: Config = settings.build(Config, table, "", problems)
    if not config.model.weights and not problems:
        fix = 'e.g. weights = "Qwen2.5-0.5B", or "run:first@400"'
        problems.append(Problem("model.weights", '""', "must name a folder of weights", fix))
    if problems:
        raise ConfigError(name, problems)
    words = (word.strip() for text in config.extract.positions for word in text.split(","))
    positions = tuple(filter(None, words))
    return replace(config, extract=replace(config.extract, positions=positions))
