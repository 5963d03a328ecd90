"""Decoder of the Llama, Mistral, Qwen 2 and 3, and Gemma 3 families, its points and its weights' formats.

Letters in tensor names: B batch, L sequence, D model width, H query heads, J key/value heads,
G = H/J, K width of a head, Q = H·K, R = J·K, F feed-forward width, V vocabulary, N layers,
P rank of adapters, T = B·L tokens.

`Decoder` is the same model as a module of flax, for notebooks and own heads.
"""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    # Its weights may be a run's, which the trainer's packages read; these stand on this one.
    if name == "Decoder":
        return importlib.import_module("workload.flax_decoder").Decoder
    raise AttributeError(name)
