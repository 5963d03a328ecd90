"""Adapters of a module's layers, by qwix: which layers take one, and the module with those.

A layer is named by its path in the module, such as `blocks.0.up`. It takes an adapter where it multiplies by
an array `kernel`, whose last axes are those of its output, as flax's layers do.
"""
# mypy: allow-untyped-calls

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import qwix  # type: ignore[import-untyped]
from flax import nnx

from workload.model.adapters import LoraConfig

_A, _B = "kernel_lora_a", "kernel_lora_b"


def with_adapters(
    model: Any, lora: LoraConfig, layers: Sequence[str] | None, method: str, inputs: Sequence[Any], seed: int
) -> Any:
    """Return the module with adapters, which it is called once to create.

    Args:
        model: in evaluation.
        lora: rank and alpha.
        layers: names; None for all that take one.
        method: that is called.
        inputs: its arguments.
        seed: of the first values.
    """
    path = ".*" if layers is None else "|".join(re.escape(name.replace(".", "/")) for name in layers)
    provider = qwix.LoraProvider(module_path=path, rank=lora.rank, alpha=lora.alpha)
    return qwix.apply_lora_to_model(model, provider, *inputs, methods=(method,), rngs=nnx.Rngs(seed))


def layers(model: Any) -> list[str]:
    """Return the names of the layers that have an adapter."""
    paths = [path for path, _ in nnx.to_flat_state(nnx.state(model, nnx.LoRAParam))]
    return [".".join(map(str, path[:-1])) for path in paths if path[-1] == _A]


def chosen(known: Sequence[str], targets: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the layers that targets match, and the targets that match none."""
    matching = {target: [name for name in known if re.fullmatch(target, name)] for target in targets}
    selected = [name for name in known if any(name in names for names in matching.values())]
    return selected, [target for target, names in matching.items() if not names]


def merged(params: Mapping[str, Any], adapters: Mapping[str, Any], lora: LoraConfig) -> dict[str, Any]:
    """Add adapters to the kernels beside them, in float32."""
    result = dict(params)
    for name, value in adapters.items():
        if isinstance(value, Mapping):
            result[name] = merged(params[name], value, lora)
    if _A in adapters:
        a, b, kernel = (np.asarray(x, np.float32) for x in (adapters[_A], adapters[_B], params["kernel"]))
        result["kernel"] = kernel + np.float32(lora.alpha / lora.rank) * (a @ b).reshape(kernel.shape)
    return result
