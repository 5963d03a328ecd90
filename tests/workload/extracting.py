"""A small model, a stream and a config, for tests and proofs of extraction."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from workload.data import stream as streams
from workload.data.stream import About, Stream
from workload.errors import StoreError
from workload.extract.config import Config, ExtractConfig, ModelConfig
from workload.extract.run import Extraction, ExtractionSummary
from workload.model import decoder, huggingface
from workload.model.architecture import Architecture
from workload.model.generation import Generation
from workload.runs.content import Content
from workload.runs.store import FolderStore, Store
from workload.train.base import Folder

ARCH = Architecture(
    layers=4, d_model=32, heads=4, kv_heads=2, d_ff=48, vocab_size=300, qkv_bias=True, tie_embeddings=True
)
POINTS = ("resid_post.*", "mlp_out.1", "attn_z.2.h3", "final_norm")
CONFIG = Config(
    ModelConfig("weights"),
    ExtractConfig(points=POINTS, dtype="float32", batch_tokens=512, shard_bytes=400_000),
)


def save_weights(folder: Path, arch: Architecture, seed: int = 7) -> Path:
    groups = arch.shapes()

    def drawn(group: str) -> dict[str, Any]:
        return {
            name: jnp.asarray(decoder.draw(name, shape, arch, seed)) for name, shape in groups[group].items()
        }

    params = {**drawn("ends"), "layers": drawn("layers")}
    huggingface.save(folder, params, arch, "float32", Generation(longest=512))
    return folder


def make_stream(lengths: list[int], vocab_size: int = 300, number: int = 3) -> bytes:
    numbers = np.random.default_rng(2)
    tokens = [numbers.integers(0, vocab_size, length).astype(np.int32) for length in lengths]
    about = About(number, 8, "5" * 64, "6" * 64, "bytes", "bytes", vocab_size)
    return streams.pack(
        about, tokens, range(100, 100 + len(lengths)), [f"doc-{n}" for n in range(len(lengths))]
    )


def extract(
    config: Config, stream: Stream, weights: Path, store: Store, check: Callable[[], None] = lambda: None
) -> ExtractionSummary:
    return Extraction(config, stream, Folder(weights), store, lambda _: None, check=check).go()


class Dying(FolderStore):
    """Creates some objects; then each attempt fails, as if the machine were gone or storage refused."""

    left = 3

    def create(self, name: str, content: Content) -> bool:
        self.left -= 1
        if self.left < 0:
            raise StoreError("no more")
        return super().create(name, content)


def in_many_shards(config: Config) -> Config:
    """A shard for each row of documents."""
    return replace(config, extract=replace(config.extract, batch_tokens=128, shard_bytes=1))
