"""Settings of a run: a TOML file, overrides on the command line, rules beside each."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from settings_schema.rules import Rule, at_least, between, one_of
from workload import settings
from workload.errors import ConfigError, Problem
from workload.runs.location import of_scheme
from workload.runs.store import open_store
from workload.settings import WORDS, ruled


@dataclass(frozen=True)
class InputConfig:
    """Sources of text."""

    sources: WORDS = ()  # files, folders, gs://BUCKET/PREFIX; reads all objects below the prefix
    format: str = ruled("auto", one_of("auto", "text", "lines", "parquet"))  # auto: by the file's name
    # field of a line or row that holds the text
    field: str = ruled("text", Rule(bool, "the name of a field"))
    max_document_mb: int = ruled(100, between(1, 1000))  # longer documents are rejected; 10^6 bytes of UTF-8
    # tolerated share of unusable lines, rows and files; beyond it the run fails
    max_unusable_fraction: float = ruled(0.1, between(0, 1))


@dataclass(frozen=True)
class FiltersConfig:
    """Filters of documents; by default only empty ones are rejected."""

    script: str = ""  # a Python file that replaces the filters below, with `def documents(rows)`
    # shorter documents are rejected; white space around isn't counted
    min_characters: int = ruled(1, at_least(1))
    # documents with less are rejected; of all characters but white space
    min_alphanumeric_fraction: float = ruled(0.0, between(0, 1))
    # documents with more are rejected; blank lines aren't counted
    max_repeated_line_fraction: float = ruled(1.0, between(0, 1))
    # documents with more U+FFFD, from faulty conversions, are rejected
    max_replacement_fraction: float = ruled(1.0, between(0, 1))


@dataclass(frozen=True)
class DedupConfig:
    """Detection of duplicates."""

    method: str = ruled("exact", one_of("none", "exact", "fuzzy"))  # fuzzy: exact, and MinHash
    ngram_words: int = ruled(5, between(1, 64))  # words of a MinHash shingle
    bands: int = ruled(14, between(1, 256))  # documents that agree in a band are similar
    band_hashes: int = ruled(8, between(1, 64))  # hashes of a band, all of which must agree


@dataclass(frozen=True)
class TokenizerConfig:
    """Tokenizer, as the trainer knows it."""

    name: str = ruled("bytes", Rule(bool, "`bytes` or a path"))  # or a tokenizer.json, or its folder
    end: str = ""  # token that ends a document (default: the first of the usual names)


@dataclass(frozen=True)
class OutputConfig:
    """Output and its place."""

    url: str = ""  # gs://BUCKET/PREFIX or a folder; parent of the runs' folders
    shards: int = ruled(64, between(1, 65_536))  # number of shards; a document's hash chooses its shard
    sequence_length: int = ruled(2048, at_least(1))  # that of the training; determines the number of examples


@dataclass(frozen=True)
class RuntimeConfig:
    """Computation; doesn't influence the output's bytes."""

    partitions: int = ruled(0, at_least(0))  # tasks that read; 0: four per core, or more for much text
    piece_mib: int = ruled(64, at_least(1))  # approximate size of JSON lines or Parquet that a task reads


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    input: InputConfig = InputConfig()
    filters: FiltersConfig = FiltersConfig()
    dedup: DedupConfig = DedupConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    output: OutputConfig = OutputConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    def decides(self) -> dict[str, Any]:
        """Return the settings that determine the output's bytes, without places and computation."""
        tables = asdict(self)
        del tables["runtime"], tables["output"]["url"], tables["input"]["sources"]
        del tables["tokenizer"]["name"], tables["filters"]["script"]
        decided: dict[str, Any] = json.loads(json.dumps(tables))
        return decided


PACKAGED = resources.files("workload") / "preprocess" / "configs"


def load(name: str, overrides: Sequence[str] = ()) -> Config:
    """Read a config, a path, gs://BUCKET/OBJECT or a packaged one, and apply `key=value` overrides.

    Raises:
        ConfigError: with every problem found.
        StoreError: the bucket can't be read.
    """
    if name.startswith("gs://"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name.rpartition("/")[2])
            path.write_bytes(fetched(name))
            table = settings.read(str(path), PACKAGED)
    else:
        table = settings.read(name, PACKAGED)
    problems = settings.override(table, overrides)
    config: Config = settings.build(Config, table, "", problems)
    if not problems:
        problems += _missing(config)
    if problems:
        raise ConfigError(name, problems)
    return config


def fetched(url: str) -> bytes:
    """Return the content of gs://BUCKET/OBJECT. Raises StoreError."""
    folder, _, name = url.rpartition("/")
    return open_store(folder).read(name)


def _missing(config: Config) -> list[Problem]:
    problems = []
    # An empty name, e.g. of an unset variable, would mean the current folder.
    if not all(config.input.sources) or not config.input.sources:
        fix = 'e.g. sources = ["gs://my-project-raw/books"]'
        sources = json.dumps(list(config.input.sources))
        problems.append(Problem("input.sources", sources, "must name files, folders or gs:// prefixes", fix))
    if not config.output.url:
        fix = 'e.g. url = "gs://my-project-tokens/books"'
        problems.append(Problem("output.url", '""', "must name a folder or a gs:// prefix", fix))
    problems += of_scheme("output.url", config.output.url)
    changed = [
        name
        for name, value in asdict(config.filters).items()
        if name != "script" and value != getattr(FiltersConfig(), name)
    ]
    if config.filters.script and changed:
        fix = f"leave filters.{', filters.'.join(changed)} out, or filters.script"
        rule = "replaces the other filters"
        problems.append(Problem("filters.script", json.dumps(config.filters.script), rule, fix))
    return problems
