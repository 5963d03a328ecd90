"""Size, price and time of an extraction's output, before it begins."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from workload.activations.writer import INTEGERS_BYTES
from workload.data.stream import INDEX
from workload.errors import DataError
from workload.extract.config import ExtractConfig
from workload.extract.points import Wanted
from workload.extract.positions import ALL, WORD
from workload.model.architecture import Architecture
from workload.preflight import roofline
from workload.preflight.slices import CHIP
from workload.runs.errors import MissingObjectError
from workload.runs.store import open_store

# STANDARD in most regions of v6e; `infra/catalog/prices.toml` has each, its source and day.
STORAGE_DOLLARS_PER_GIB_MONTH = 0.02
WRITTEN_BYTES_PER_S = 1e9  # by a host, assumed; `python -m benchmarks writer` has the processor's share


@dataclass(frozen=True)
class Estimate:
    """Output of an extraction.

    Attributes:
        tokens: to compute.
        kept: of them, to store.
        token_bytes: of a kept token.
        token_flops: of a computed token.
        share: of a chip's peak, as in published training runs of about this size.
    """

    tokens: int
    kept: int
    token_bytes: int
    token_flops: float
    share: float

    @property
    def size_bytes(self) -> int:
        """Bytes of all shards, about."""
        return self.kept * self.token_bytes

    @property
    def monthly_dollars(self) -> float:
        """Price of a month of storage."""
        return self.size_bytes / 2**30 * STORAGE_DOLLARS_PER_GIB_MONTH

    def hours(self, chips: int) -> float:
        """Predict the time on a host with `chips`, of arithmetic or writing, whichever takes longer."""
        return max(self._computing_s(chips), self._writing_s) / 3600

    def _computing_s(self, chips: int) -> float:
        return self.tokens * self.token_flops / (chips * CHIP.bf16_flops_per_s * self.share)

    @property
    def _writing_s(self) -> float:
        return self.size_bytes / WRITTEN_BYTES_PER_S

    def text(self, chips: int) -> str:
        """Return a line; `chips` of a TPU host, 0 where no time is predicted."""
        dollars = self.monthly_dollars
        paid = f"${dollars:,.2f}" if dollars >= 0.01 else "less than $0.01"
        time = ""
        if chips:
            writes = self._writing_s > self._computing_s(chips)
            bound = f"writing {WRITTEN_BYTES_PER_S / 1e9:g} GB/s a host" if writes else f"{chips} chips"
            time = f"; predicted: {self.hours(chips):.2g} hours of a host, bound by {bound}"
        return (
            f"{self.kept:,} of {self.tokens:,} tokens x {self.token_bytes:,} bytes ="
            f" {self.size_bytes / 1e9:,.3f} GB, {paid} a month in STANDARD{time}"
        )


def token_bytes(wanted: Sequence[Wanted], arch: Architecture, dtype: str) -> int:
    """Return the bytes of a kept token in a shard."""
    numbers = sum(tensor.size(arch) for tensor in wanted)
    return numbers * (2 if dtype == "bfloat16" else 4) + INTEGERS_BYTES


def estimate(
    tokens: int, kept: int, extract: ExtractConfig, wanted: Sequence[Wanted], arch: Architecture
) -> Estimate:
    """Estimate the output of `tokens`, of which `kept` are stored."""
    last = min(arch.layers, max(tensor.layer for tensor in wanted) + 1)
    # Attention's share is small at prompts' lengths; the matrices' products count.
    parts = roofline.forward_flops(arch, 1, "einsum")
    flops = (sum(parts.values()) - parts["unembedding"]) * last / arch.layers
    _, share, _ = roofline.method().for_size(arch.parameters()).shares
    return Estimate(tokens, kept, token_bytes(wanted, arch, extract.dtype), flops, share)


def of_source(stream: str, extract: ExtractConfig, wanted: Sequence[Wanted], arch: Architecture) -> Estimate:
    """Estimate the output of all streams of a folder, or of those beside a stream, by their index.

    Raises:
        DataError: there is no index, or it is damaged.
    """
    folder = stream.rpartition("/")[0] or "." if stream.endswith(".safetensors") else stream.rstrip("/")
    try:
        index = json.loads(open_store(folder).read(INDEX))
        tokens, samples = int(index["tokens"]), int(index["samples"])
    except MissingObjectError:
        fix = "name the folder that `workload data streams` wrote"
        raise DataError(f"{folder}/{INDEX}: no such index of streams\n    fix: {fix}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder}/{INDEX}: is damaged: {error!r}\n    fix: split the samples again"
        ) from None
    kept = 0
    for word in extract.positions:
        parsed = WORD.fullmatch(word)
        if word == ALL or not parsed or parsed["role"]:  # at most: the streams have the roles' tokens
            kept += tokens
        else:
            kept += tokens // int(parsed["step"]) + samples // 2 if parsed["step"] else samples
    return estimate(tokens, min(kept, tokens), extract, wanted, arch)
