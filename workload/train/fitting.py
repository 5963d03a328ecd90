"""Reconcile a config with its initial weights, its tokens and its devices."""

import hashlib
from dataclasses import asdict, replace
from typing import Any

from workload import command
from workload.data.tokens import Examples
from workload.errors import ConfigError, Problem
from workload.model.architecture import Architecture
from workload.train import divisibility
from workload.train.config import FROM_WEIGHTS, Config


def resolve(config: Config, dataset: Examples) -> Config:
    """Return the config completed from the initial weights and the tokens.

    An absent [model] is taken from `train.init_from`, a vocabulary of 0 from the tokens.

    Raises:
        ConfigError: model and weights differ, the vocabulary is smaller than the tokens', or the tokens
            have another tokenizer.
        WeightsError: the weights' config.json is unusable.
    """
    problems: list[Problem] = []
    if config.train.init_from and isinstance(config.model, Architecture):
        config = model_from_weights(config, problems)
    if config.train.init_from and not config.train.init_from.startswith("run:"):
        folder, made_with = config.weights, dataset.manifest.tokenizer_sha256
        tokenizer = folder / "tokenizer.json"
        if tokenizer.is_file() and hashlib.sha256(tokenizer.read_bytes()).hexdigest() != made_with:
            rule = f"has another tokenizer than the tokens, {dataset.manifest.tokenizer}"
            fix = f"{command('data', 'prepare', '--tokenizer', str(folder))} --source … --out …"
            problems.append(Problem("train.init_from", str(folder), rule, fix))
    vocab_size = dataset.manifest.vocab_size
    if config.model.vocab_size and config.model.vocab_size < vocab_size:
        rule = f"must be at least {vocab_size}, the vocabulary of the tokens' tokenizer"
        fix = "set it to 0 for the tokens' own, or prepare the data with the model's tokenizer"
        problems.append(Problem("model.vocab_size", str(config.model.vocab_size), rule, fix))
    if problems:
        raise ConfigError("config", problems)
    if config.model.vocab_size:
        return config
    return replace(config, model=replace(config.model, vocab_size=vocab_size))


def model_from_weights(config: Config, problems: list[Problem]) -> Config:
    """Return the config with the model of `train.init_from`; append differences to `problems`.

    Raises:
        WeightsError: the weights' config.json is unusable.
    """
    from workload.train import base  # orbax takes seconds to import

    given = base.named(config.train.init_from)
    stored = given.arch
    chosen = stored if config.model == Architecture() else config.decoder

    def filled(arch: Architecture) -> dict[str, Any]:
        vocab_size = arch.vocab_size or stored.vocab_size
        return asdict(replace(arch, kv_heads=arch.J, head_dim=arch.K, vocab_size=vocab_size))

    for key, value in filled(chosen).items():
        if value != (known := filled(stored)[key]):
            rule = f"must be {known!r}, as in {given.name}"
            problems.append(Problem(f"model.{key}", repr(value), rule, f'model = "{FROM_WEIGHTS}"'))
    return replace(config, model=stored)


def check(config: Config, devices: int, platform: str, examples: int) -> None:
    """Check the batch and the attention kernel against devices, platform and number of examples.

    Raises:
        ConfigError: with a value that fits.
    """
    problems = divisibility.problems(config, devices, platform, "the number of devices", "device")
    batch = config.train.batch_size
    if batch > examples:
        rule = f"must not be more than the {examples} examples that the token files hold"
        problems.append(Problem("train.batch_size", str(batch), rule, "prepare more text, or lower it"))
    if problems:
        raise ConfigError("config", problems)
