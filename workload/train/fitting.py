"""Makes a config, its weights and its tokens fit one another, or says why they can't."""

import hashlib
from dataclasses import asdict, replace
from pathlib import Path

from workload import command
from workload.data.tokens import Dataset
from workload.errors import ConfigError, Problem
from workload.model import huggingface
from workload.model.architecture import Architecture
from workload.train import divisibility
from workload.train.config import Config


def resolve(config: Config, dataset: Dataset) -> Config:
    """The config with what it leaves to the weights it begins with, and to the tokens.

    A [model] that isn't given is that of `train.init_from`; a vocabulary of 0 is the tokens'.

    Raises:
        ConfigError: the model isn't that of the weights, or its vocabulary is smaller than the
            tokens', or these were made with another tokenizer.
        WeightsError: the weights' config.json can't be used.
    """
    problems: list[Problem] = []
    if config.train.init_from:
        folder = Path(config.train.init_from)
        config = take_model(config, problems)
        tokenizer = folder / "tokenizer.json"
        made_with = dataset.manifest.tokenizer_sha256
        if tokenizer.is_file() and hashlib.sha256(tokenizer.read_bytes()).hexdigest() != made_with:
            rule = f"the tokens were made with another tokenizer, {dataset.manifest.tokenizer}"
            fix = f"{command('data', 'prepare', '--tokenizer', str(folder))} --source … --out …"
            problems.append(Problem("train.init_from", str(folder), rule, fix))
    vocab_size = dataset.manifest.vocab_size
    if config.model.vocab_size and config.model.vocab_size < vocab_size:
        rule = f"must be at least {vocab_size}, the vocabulary of the tokens' tokenizer"
        fix = "set it to 0 to take the tokens', or prepare the data with the model's tokenizer"
        problems.append(Problem("model.vocab_size", str(config.model.vocab_size), rule, fix))
    if problems:
        raise ConfigError("config", problems)
    if config.model.vocab_size:
        return config
    return replace(config, model=replace(config.model, vocab_size=vocab_size))


def take_model(config: Config, problems: list[Problem]) -> Config:
    """The config with the model of `train.init_from`; what differs from it is added to `problems`.

    Raises:
        WeightsError: the weights' config.json can't be used.
    """
    folder = Path(config.train.init_from)
    theirs = huggingface.read_architecture(folder)
    mine = theirs if config.model == Architecture() else config.model
    filled = replace(mine, kv_heads=mine.J, head_dim=mine.K, vocab_size=mine.vocab_size or theirs.vocab_size)
    for key, value in asdict(filled).items():
        if value != (known := asdict(theirs)[key]):
            rule = f"must be {known!r}, as in {folder}/config.json"
            problems.append(Problem(f"model.{key}", repr(value), rule, "leave [model] out to take theirs"))
    return replace(config, model=filled)


def check(config: Config, devices: int, platform: str, examples: int) -> None:
    """Refuses a batch that doesn't divide over the devices or that the tokens can't fill, and a kernel
    that the platform hasn't.

    Raises:
        ConfigError: with what would do.
    """
    problems = divisibility.problems(config, devices, platform, "the number of devices", "device")
    batch = config.train.batch_size
    if batch > examples:
        rule = f"must not be more than the {examples} examples that the token files hold"
        problems.append(Problem("train.batch_size", str(batch), rule, "prepare more text, or lower it"))
    if problems:
        raise ConfigError("config", problems)
