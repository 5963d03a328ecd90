"""Checks of a start and of its estimate, without a device: settings, stream, weights, the run's record."""
# mypy: allow-untyped-calls

import json
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from settings_schema import foreign
from workload import command
from workload.data.stream import Stream
from workload.errors import ConfigError, HopelessError, Problem
from workload.extract import packing, points, positions
from workload.extract.config import Config
from workload.extract.points import Wanted
from workload.extract.weights import Weights
from workload.runs.store import Store
from workload.train.record import refuse_other

IDENTITY = "config.json"


def selected(
    config: Config, stream: Stream, weights: Weights, present: bool = True
) -> tuple[list[Wanted], NDArray[np.bool_] | None]:
    """Return the tensors to keep, and True for each token to keep; None for all tokens.

    Args:
        config: settings.
        stream: to extract.
        weights: of the model.
        present: False for weights that aren't on this machine, which aren't checked.

    Raises:
        WorkloadError: settings, stream and weights don't fit together.
    """
    wanted, problems = points.parse(config.extract.points, weights.arch)
    kept_T, of_positions = positions.parse(config.extract.positions, stream)
    problems += _problems(config, stream, weights) + of_positions
    if problems:
        raise ConfigError("workload extract", problems)
    if present:
        weights.check()
    return wanted, kept_T


def _problems(config: Config, stream: Stream, weights: Weights) -> list[Problem]:
    problems = []
    rows, lengths = config.extract.row_tokens, stream.lengths()
    longest = max(lengths, default=0)
    if rows and longest > rows:
        worst = stream.ids[lengths.index(longest)]
        rule = f"is less than the longest document, {worst!r} of {longest} tokens"
        fix = f"{longest} or more, 0 to choose it, or reject long documents: --max-tokens {rows}"
        problems.append(Problem("extract.row_tokens", str(rows), rule, fix))
    about, vocab_size = stream.about, weights.arch.vocab_size
    rule = ""
    if weights.tokenizer_sha256 not in ("", about.tokenizer_sha256):
        rule = f"was made with another tokenizer, {about.tokenizer}, than the one of {weights.name}"
    elif about.vocab_size > vocab_size:
        rule = f"was made with {about.vocab_size} tokens, {weights.name} knows {vocab_size}"
    if rule:
        fix = f"{command('data', 'streams')} … --tokenizer FOLDER, of the model's own tokenizer.json"
        problems.append(Problem("--stream", stream.url, rule, fix))
    return problems


def identity(
    config: Config, stream: Stream, weights: Weights, names: tuple[str, ...], chips: int
) -> dict[str, Any]:
    """Return the settings that determine a run's shards; `names`: of the tensors kept."""
    about, extract = stream.about, asdict(config.extract)
    if config.extract.positions == (positions.ALL,):
        del extract["positions"]  # as in runs begun before there was a choice
    return {
        "model": asdict(weights.arch) | weights.identity(),
        "extract": extract | {"points": names},
        "chips": chips,
        "packing": packing.VERSION,
        "streams": {
            "dealt_sha256": about.dealt_sha256,
            "source_sha256": about.source_sha256,
            "tokenizer_sha256": about.tokenizer_sha256,
            "count": about.streams,
        },
    }


def refuse_other_run(store: Store, given: dict[str, Any], compared_chips: bool = True) -> None:
    """Raise if `store` holds the record of a run of other settings.

    Raises:
        HopelessError: names each changed setting; or the record is damaged.
    """
    try:
        recorded = foreign.parse(store.read(IDENTITY))
        was, now = (
            {**run, "extract": {"positions": [positions.ALL], **foreign.group(run, "extract")}}
            for run in (recorded, json.loads(json.dumps(given)))
        )
    except ValueError as error:
        where, fix = f"{store.url}/{IDENTITY}", "give the new run another --name"
        raise HopelessError(f"{where}: is damaged: {error}\n    fix: {fix}") from None
    refuse_other(store, was, now if compared_chips else {**now, "chips": was.get("chips")})
