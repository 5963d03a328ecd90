"""Shards as activation-extract writes them: gzip of a pickle, by one thread.

A model of the design of kathir-ks/activation-extract, written anew: a shard is a dictionary from layers to
lists of samples, each with its float32 array, its shape and the start of its text. Without its padding: it
stores every sample at the longest length there may be.
"""

import gzip
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

LEVEL = 9


def write(path: Path, values: Mapping[int, NDArray[np.float32]], lengths: Sequence[int]) -> None:
    """Write a shard.

    Args:
        path: of the file.
        values: by layer, T x D of all samples' tokens, back to back.
        lengths: tokens of each sample.
    """
    ends = np.cumsum(lengths)
    shard = {
        layer: [
            {
                "sample_idx": number,
                "activation": np.array(values_TxD[end - length : end]),
                "shape": (length, values_TxD.shape[1]),
                "text_preview": "",
            }
            for number, (end, length) in enumerate(zip(ends, lengths, strict=True))
        ]
        for layer, values_TxD in values.items()
    }
    with gzip.open(path, "wb", compresslevel=LEVEL) as file:
        pickle.dump(shard, file, protocol=pickle.HIGHEST_PROTOCOL)
