"""Adapters of low rank beside a decoder's frozen matrices: settings, shapes, first values.

LoRA (Hu et al., 2021): a matrix W of D x F becomes W + alpha / rank · A B, with A of D x P and B of P x F.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from settings_schema.rules import above, at_least, one_of
from workload.errors import Problem
from workload.model.architecture import Architecture
from workload.settings import WORDS, ruled

PROJECTIONS = {
    "q_proj": "query_NxDxQ",
    "k_proj": "key_NxDxR",
    "v_proj": "value_NxDxR",
    "o_proj": "out_NxQxD",
    "gate_proj": "gate_NxDxF",
    "up_proj": "up_NxDxF",
    "down_proj": "down_NxFxD",
}
"""Matrices of a layer by Hugging Face's name, which targets match."""


@dataclass(frozen=True)
class LoraConfig:
    """Adapters, trained in place of the parameters; the weights of train.init_from are frozen."""

    rank: int = ruled(0, at_least(0), most=4096)  # rank of the adapters; 0: none, all parameters are trained
    alpha: float = ruled(16.0, above(0))  # adapters are scaled by alpha / rank
    # matrices with an adapter: regular expressions of names such as q_proj, or of paths of a module's layers
    targets: WORDS = (".*_proj",)
    quantize: str = ruled("none", one_of("none", "int8"))  # format of the frozen matrices, as in QLoRA


def adapted(lora: LoraConfig) -> dict[str, str]:
    """Return the matrices with an adapter, by Hugging Face's name."""
    return {
        name: matrix
        for name, matrix in PROJECTIONS.items()
        if lora.rank and any(re.fullmatch(target, name) for target in lora.targets)
    }


def problems(lora: LoraConfig, init_from: str, products: str, decoder: bool = True) -> list[Problem]:
    """Return violations of rules between the settings of adapters, train.init_from and compute.products.

    Targets are compared with the matrices of the decoder here, with those of a module where it is opened.
    """
    if not lora.rank:
        return []
    violations = []
    if products == "int8" and lora.quantize != "int8":
        rule = 'must be "int8" beside compute.products = "int8"'
        violations.append(Problem("lora.quantize", repr(lora.quantize), rule, "set it, or leave both out"))
    if not init_from:
        fix = f"name a {'folder of Hugging Face weights' if decoder else 'run'}, or set lora.rank to 0"
        violations.append(Problem("train.init_from", '""', "must be set: adapters change a given model", fix))
    if not lora.targets:
        violations.append(
            Problem("lora.targets", "[]", "must name a matrix", f"e.g. {list(PROJECTIONS)[:2]}")
        )
    for target in lora.targets:
        try:
            matches = any(re.fullmatch(target, name) for name in PROJECTIONS)
        except re.error as error:
            violations.append(
                Problem("lora.targets", repr(target), f"is no regular expression: {error}", '".*_proj"')
            )
            continue
        if decoder and not matches:
            fix = f"a regular expression of {', '.join(PROJECTIONS)}"
            violations.append(Problem("lora.targets", repr(target), "matches no matrix of a layer", fix))
    return violations


def pair(matrix: str) -> tuple[str, str]:
    """Return the names of a matrix's A and B; of a single layer, if the matrix's is."""
    kind, _, letters = matrix.rpartition("_")
    *layer, before, after = letters.split("x")
    return f"{kind}_a_{'x'.join([*layer, before, 'P'])}", f"{kind}_b_{'x'.join([*layer, 'P', after])}"


def shapes(arch: Architecture, lora: LoraConfig) -> dict[str, tuple[int, ...]]:
    """Return every adapter's shape by name."""
    matrices = arch.shapes()["layers"]
    result: dict[str, tuple[int, ...]] = {}
    for matrix in adapted(lora).values():
        layers, before, after = matrices[matrix]
        a, b = pair(matrix)
        result |= {a: (layers, before, lora.rank), b: (layers, lora.rank, after)}
    return result


def draw(name: str, shape: Sequence[int], seed: int) -> NDArray[np.float32]:
    """Draw an adapter's initial value: A is normal with variance 1 / fan-in, B zero."""
    if "_b_" in name:
        return np.zeros(shape, np.float32)
    generator = np.random.Generator(np.random.Philox([seed, *name.encode()]))
    return generator.standard_normal(tuple(shape), np.float32) * np.float32(shape[-2] ** -0.5)


def merged(layers: dict[str, Any], adapters: dict[str, Any], lora: LoraConfig) -> dict[str, Any]:
    """Add adapters to the matrices beside them, in float32."""
    result = dict(layers)
    for matrix in adapted(lora).values():
        a, b = (np.asarray(adapters[name], np.float32) for name in pair(matrix))
        result[matrix] = np.asarray(layers[matrix], np.float32) + np.float32(lora.alpha / lora.rank) * (a @ b)
    return result
