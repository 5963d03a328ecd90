"""Keys that `--set` of a slice's run may name: infra's table is what the workload declares.

After a change there, write the table anew: python -m tests.docs.test_run_keys
"""

import json
import re
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Union, get_args, get_origin, get_type_hints

import pytest

from infra.settings import commands
from workload.extract import config as extraction
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


def table() -> dict[str, dict[str, str | list[str]]]:
    known = {program: dict(sorted(declared(module.Config))) for program, module in CONFIGS.items()}
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


@pytest.mark.parametrize("run", [
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
