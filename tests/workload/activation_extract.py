"""The design of kathir-ks/activation-extract, as little of it as shows each defect.

Written anew from what its code does; docs/internals/extraction.md has the list. Where a check of
test_activation_extract.py passes on ours, it has to fail on these, or it would show nothing.
"""

import gzip
import io
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

A_BATCH, A_SHARD = 4, 3  # samples: shards close in the middle of a batch


class KilledError(Exception):
    """The machine is gone."""


@dataclass
class Worker:
    """Its loop over batches with its storage: a buffer in memory, shards by size, a note after a batch."""

    samples: Sequence[int]
    goes_on_numbering: bool = False  # the first defect mended, so that the second one shows
    bucket: dict[str, bytes] = field(default_factory=dict)
    disk: dict[str, bytes] = field(default_factory=dict)  # of its machine
    computed: int = 0  # samples, over all starts

    def start(self, dies_after: int = 1000, refused: int = 1000) -> None:
        """Continues where its note says.

        Args:
            dies_after: shards after which, once its batch is through, the machine is gone.
            refused: the number of the one upload that storage refuses.
        """
        note = json.loads(self.disk["checkpoint.json"]) if "checkpoint.json" in self.disk else {}
        done = note.get("last_processed_sample_idx", -1) + 1
        noted = shards = note.get("total_shards", 0)
        shards = shards if self.goes_on_numbering else 0
        buffer: list[int] = []
        uploads = 0

        def close() -> None:
            nonlocal shards, uploads
            shards, uploads = shards + 1, uploads + 1
            if uploads != refused:  # else it prints a line and continues
                self.bucket[f"shard_{shards:04}.pkl.gz"] = gzip.compress(pickle.dumps(buffer), mtime=0)
            buffer.clear()

        for start in range(0, len(self.samples), A_BATCH):
            end = min(start + A_BATCH, len(self.samples))
            for sample in self.samples[max(start, done) : end]:
                self.computed += 1
                buffer.append(sample)
                if len(buffer) == A_SHARD:
                    close()
            if shards > noted:
                note = {"last_processed_sample_idx": end - 1, "total_shards": shards}
                self.disk["checkpoint.json"], noted = json.dumps(note).encode(), shards
            if uploads >= dies_after:
                raise KilledError
        if buffer:
            close()

    def shards(self) -> dict[str, bytes]:
        """Objects in the bucket."""
        return dict(self.bucket)

    def samples_stored(self) -> list[int]:
        """Samples in all shards."""
        return sorted(sample for raw in self.bucket.values() for sample in read(raw))


def read(raw: bytes) -> Any:
    """A shard."""
    return pickle.loads(gzip.decompress(raw))


def padded(tokens: Sequence[Sequence[int]], most: int, pad: int = 0) -> NDArray[np.int32]:
    """Every sample at one length: cut to it, or filled up."""
    return np.array([[*token[:most], *[pad] * (most - len(token))] for token in tokens], np.int32)


def labelled(sample_numbers: Sequence[int], a_batch: int, hosts: int) -> list[tuple[int, int]]:
    """Of a last batch: pairs of the name that a row is stored under and the sample that it is of."""
    rows = [*sample_numbers, *[sample_numbers[-1]] * (a_batch - len(sample_numbers))]
    item, named = a_batch // hosts, len(sample_numbers) // hosts
    return [
        (sample_numbers[host * named + row], rows[host * item + row])
        for host in range(hosts)
        for row in range(named)
    ]


def on_one_chip(tokens_BxL: NDArray[np.int32]) -> jax.Array:
    """A batch where one host works alone: no mesh, so the first device has it."""
    return jnp.array(tokens_BxL)


def gathered(value: jax.Array) -> NDArray[Any]:
    """A host's rows: all parts that its devices hold, one after another."""
    parts = sorted(value.addressable_shards, key=lambda part: str(part.index))
    return np.concatenate([np.array(part.data) for part in parts], axis=0)


def one_after_another(items: Sequence[Any], stages: Sequence[Callable[[Any], Any]]) -> None:
    """Every stage of an item before the next item."""
    for item in items:
        for stage in stages:
            item = stage(item)


def stored(values_TxD: NDArray[np.float32]) -> bytes:
    """Its file of some tokens: pickle in gzip at its default level, 9."""
    raw = io.BytesIO()
    with gzip.open(raw, "wb") as file:
        pickle.dump(values_TxD, file)
    return raw.getvalue()


def attention(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
    """All scores at once, in float32, with keys and values repeated; as `workload.model.attention`'s."""
    group = q.shape[2] // k.shape[2]
    k, v = jnp.repeat(k, group, axis=2), jnp.repeat(v, group, axis=2)
    scores = jnp.einsum("bqhk,bshk->bhqs", q.astype(jnp.float32), k.astype(jnp.float32))
    seen = (
        jnp.tril(jnp.ones(scores.shape[-2:], bool)) & (segments[:, :, None] == segments[:, None, :])[:, None]
    )
    weights = jax.nn.softmax(jnp.where(seen, scores * q.shape[-1] ** -0.5, -1e30), axis=-1)
    return jnp.einsum("bhqs,bshk->bqhk", weights, v.astype(jnp.float32)).astype(v.dtype)
