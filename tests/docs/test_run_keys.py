"""Keys that `--set` of a slice's run may name: infra's table is what the workload declares.

After a change there, write the table anew: python -m tests.docs.test_run_keys
"""

import argparse
import json
import re
import types
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Union, get_args, get_origin, get_type_hints
from unittest.mock import patch

import pytest

from infra.settings import commands
from workload import __main__ as workload
from workload.activations import command as activations
from workload.extract import config as extraction
from workload.preflight import command as preflight
from workload.train import config as training
from workload.train import optax_names

CONFIGS = {"train": training, "extract": extraction}


def declared(kind: type, prefix: str = "") -> Iterator[tuple[str, str | list[str]]]:
    """Yield the keys of a configuration with their types or values; "" for those that aren't one word."""
    rules = {item.name: item.metadata.get("rule") for item in fields(kind)}
    for name, hint in get_type_hints(kind).items():
        if hint is str and (rule := rules[name]) and rule.choices:
            yield f"{prefix}{name}", [*rule.choices]
            continue
        union = get_origin(hint) in (Union, types.UnionType)
        for choice in get_args(hint) if union else (hint,):
            if is_dataclass(choice):
                yield from declared(choice, f"{prefix}{name}.")  # type: ignore[arg-type]
            elif choice is not type(None):
                yield f"{prefix}{name}", choice.__name__ if choice in commands.KINDS.values() else ""


def options() -> Iterator[tuple[str, str | list[str]]]:
    """Yield the workload's other commands with their options."""
    every = dict(leaves(workload._parser()))
    for name, main in {"activations": activations.main, "preflight": preflight.main}.items():
        del every[name]  # which has a parser of its own
        with patch.object(
            argparse.ArgumentParser, "parse_args", autospec=True, side_effect=ParsedError
        ) as parse:
            with suppress(ParsedError):
                main([])
            every |= leaves(parse.call_args[0][0], name)
    for name, parser in every.items():
        if name.split()[0] in {*commands.COMMANDS} - {*CONFIGS}:
            yield name, sorted(parser._option_string_actions)


class ParsedError(Exception):
    """Raised in place of the parsing of a command line."""


def leaves(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for word, inner in action.choices.items():
            yield from leaves(inner, f"{name} {word}".strip())
    if not below:
        yield name, parser


def table() -> dict[str, dict[str, str | list[str]]]:
    known = {program: dict(sorted(declared(module.Config))) for program, module in CONFIGS.items()}
    known["options"] = dict(sorted(options()))
    known["train"] |= {"optimizer.name": sorted(optax_names.names()), "model": [training.FROM_WEIGHTS]}
    return known


def test_the_keys_of_a_run_are_those_of_the_workload() -> None:
    assert table() == commands.KEYS


@pytest.mark.parametrize(("change", "problem"), [
    ("train.stepz=3", "perhaps train.steps was meant"), ("steps=3", "isn't a setting of train"),
    ("train.steps=many", "train.steps is a whole number"), ("train.steps=1.5", "a whole number"),
    ("optimizer=adam", "isn't a setting of train"),
    ("optimizer.name=adafctor", "no value of optimizer.name; did you mean adafactor?"),
    ("optimizer.name=3", "no value of optimizer.name; e.g. acprop"),
    ("optimizer.schedule=cosin", "no value of optimizer.schedule; did you mean cosine?"),
])  # fmt: skip
def test_a_run_that_no_host_can_start_is_refused_with_the_settings(change: str, problem: str) -> None:
    (refused,) = commands.wrong_options("tpu:slices[0].run", f"train tiny.toml --set {change}")
    assert problem in refused.rule
    with pytest.raises(training.ConfigError):
        training.load("tiny.toml", [change])


@pytest.mark.parametrize(("run", "problem"), [
    ("train tiny.toml --set data.path=s3://b/x", "data.path is a folder, or gs://BUCKET/FOLDER, not s3://b/x"),
    ("train tiny.toml --set 'train.init_from=\"gs:/b/x\"'", "train.init_from is a folder, or gs://"),
    ("train tiny.toml --set observe.eval_path=gs:///x", "observe.eval_path is a folder, or gs://"),
    ("train tiny.toml --dir=s3://b/x", "--dir is a folder, or gs://"),
    ("extract x.toml --stream s3://b/x", "--stream is a folder, or gs://"),
    ("extract x.toml --stream gs://b/x --set model.weights=https://h/x", "model.weights is a folder"),
    ("data prepare --sourze x --out y", "--sourze isn't an option of data prepare: --chat"),
    ("data prepair --source x", "data prepair is none of the commands data prepare, data streams"),
    ("checkpoints", "checkpoints is none of the commands checkpoints export"),
    ("goodput gs://b/runs/x --jsn", "--jsn isn't an option of goodput: --help, --json, -h"),
    ("activations show x --documents=3", "--documents isn't an option of activations show"),
])  # fmt: skip
def test_words_that_a_command_would_refuse_are_refused_with_the_settings(run: str, problem: str) -> None:
    (refused,) = commands.wrong_options("tpu:slices[0].run", run)
    assert problem in refused.rule


@pytest.mark.parametrize("run", [
    "train tiny.toml --set train.init_from=run:first@400 --set data.path=a/b:/c --dir gs://elsewhere",
    "train tiny.toml --set train.init_from=run:/mnt/checkpoints/runs/a@20",
    "data prepare --source=x --out y --chat -- --x", "checkpoints verify gs://b/runs/x --step 3 --json",
    "train tiny.toml --set train.steps=20 --set optimizer.learning_rate=3 --set compute.dtype=float32",
    "train mine.toml --set model.settings.width=64 --set optimizer.name=muon --set data.loss=",
    "extract qwen2.5-0.5b.toml --stream gs://b/s --set extract.positions=last --set extract.batch_tokens=512",
])  # fmt: skip
def test_what_hosts_take_is_taken(run: str) -> None:
    assert not [*commands.wrong_options("tpu:slices[0].run", run)]


def _write(folder: Path) -> None:
    text = re.sub(r"\[[^\]]*\]", lambda match: " ".join(match[0].split()), json.dumps(table(), indent=1))
    (folder / commands.KEYS_FILE).write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    _write(Path(commands.__file__).parent)
