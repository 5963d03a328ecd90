"""What an extraction is told: a TOML file, settings on the command line, rules beside each."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from workload import settings
from workload.errors import ConfigError, Problem
from workload.settings import WORDS, at_least, one_of, ruled


@dataclass(frozen=True)
class ModelConfig:
    """Which weights."""

    # A folder of Hugging Face's below $DATA_DIR, or a step of a run of ours: "run:first@400", or with the
    # run's place, "run:gs://BUCKET/runs/first@400".
    weights: str = ""


@dataclass(frozen=True)
class ExtractConfig:
    """What to keep, and how."""

    # By name and layer: "resid_post.12", "mlp_out.*", "final_norm"; "attn_z.3.h5" for one head.
    points: WORDS = ()
    dtype: str = ruled("bfloat16", one_of("float32", "bfloat16"))  # of the computation and of what is kept
    batch_tokens: int = ruled(16384, at_least(128))  # computed at once, about, on all chips together
    row_tokens: int = ruled(0, at_least(0))  # of a row of documents; 0: the shortest that pads little
    shard_bytes: int = ruled(1_000_000_000, at_least(1), most=2**53)  # of a shard, about


@dataclass(frozen=True)
class Config:
    """A whole extraction."""

    model: ModelConfig = ModelConfig()
    extract: ExtractConfig = ExtractConfig()


PACKAGED = resources.files("workload") / "extract" / "configs"


def load(name: str, overrides: Sequence[str] = ()) -> Config:
    """Reads a config, a path or a packaged one, and applies `key=value` overrides.

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
    return config
