"""Roofline of a step: arithmetic, memory traffic and communication, each against its peak.

XLA's own estimate isn't used: it counts a loop's body once, ignores kernels and links, and is negative for a
step of 8 billion parameters. Here the arithmetic is the model's, the collectives and their exposure are the
compiled program's, and ratios of speed to roofline are those of published runs (`published.toml`): MaxText's
for the time that it would take, other trainers' for this program, which no TPU has run.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from statistics import mean
from typing import Any

from workload.model import kernels
from workload.model.architecture import Architecture
from workload.preflight.schedule import Collective
from workload.preflight.slices import CHIP, Slices
from workload.train.config import Config
from workload.train.flops import mfu, model_flops

# Parts recomputed in the backward pass, and the points whose storage avoids that.
_SPARED_BY = {
    "query": ("query",),
    "key": ("key",),
    "value": ("value",),
    "attention": ("attn_z",),
    "out": ("attn_out", "resid_mid"),
    "gate": ("mlp_gate",),
    "up": ("mlp_up",),
}


def forward_flops(arch: Architecture, length: int, attention: str) -> dict[str, float]:
    """Return the executed FLOPs of a forward pass per token, by part.

    Attention skips blocks outside the mask; blocks on its edges are computed whole.
    """
    D, F, N, K = arch.d_model, arch.d_ff, arch.layers, arch.K
    Q, R = arch.heads * K, arch.J * K
    shares = sum(kernels.computed_share(attention, length, arch.window * local) for local in arch.local())
    return {
        "query": 2.0 * N * D * Q,
        "key": 2.0 * N * D * R,
        "value": 2.0 * N * D * R,
        "attention": 4.0 * Q * length * shares,
        "out": 2.0 * N * Q * D,
        "gate": 2.0 * N * D * F,
        "up": 2.0 * N * D * F,
        "down": 2.0 * N * F * D,
        "unembedding": 2.0 * D * arch.vocab_size,
    }


def step_flops(arch: Architecture, length: int, attention: str, remat: Sequence[str]) -> float:
    """Return the FLOPs per token of a step: forward, recomputation, backward."""
    parts = forward_flops(arch, length, attention)
    again = sum(flops for part, flops in parts.items() if _again(part, remat))
    # Backward: two products for one; with recomputed scores, five for two.
    scores = 0.5 * parts["attention"] if attention in kernels.SPLASH else 0.0
    backward = 2 * sum(parts.values()) + scores
    return sum(parts.values()) + again + backward


def _again(part: str, remat: Sequence[str]) -> bool:
    if part not in _SPARED_BY or list(remat) == ["none"]:
        return False
    if list(remat) == ["dots"]:
        return part == "attention"
    stored = {word.partition(":")[2] for word in remat}
    return not stored & set(_SPARED_BY[part])


@dataclass(frozen=True)
class Size:
    """Size of a compiled user's module.

    Attributes:
        parameters: their number.
        flops: of a step's products, on all chips, recomputation included.
        temporaries_bytes: of a chip.
    """

    parameters: int
    flops: float
    temporaries_bytes: int

    def hbm_bytes(self, config: Config, slices: Slices, state_bytes: int) -> float:
        """Estimate a chip's traffic: the optimizer's, and each temporary written and read once."""
        updated = _update_bytes(config, slices, state_bytes, self.parameters)
        return updated + 2.0 * self.temporaries_bytes


@dataclass(frozen=True)
class Bounds:
    """Least seconds of a step on each resource, at its published peak, and its waits.

    Attributes:
        exposed: waits for collectives, at the links' measured speed.
    """

    compute: float
    hbm: float
    ici: float
    dcn: float
    exposed: float = 0.0

    @property
    def binding(self) -> str:
        """Resource that needs the longest."""
        return max(("compute", "hbm", "ici", "dcn"), key=lambda name: float(getattr(self, name)))

    @property
    def roofline_s(self) -> float:
        """Longest of the bounds: everything overlapped."""
        return max(self.compute, self.hbm, self.ici, self.dcn)


def bounds(
    config: Config,
    slices: Slices,
    attention: str,
    collectives: Sequence[Collective],
    state_bytes: int,
    size: Size | None = None,
) -> Bounds:
    """Compute the roofline of a step of such a state; `size` is that of a user's module."""
    parts = config.train.accumulate
    ici, dcn = (
        sum(
            collective.times * collective.sent_bytes
            for collective in collectives
            if collective.across is across
        )
        for across in (False, True)
    )
    if size is None:
        tokens = config.train.batch_size * config.data.sequence_length / slices.chips
        arch = config.decoder
        flops = tokens * step_flops(arch, config.data.sequence_length, attention, config.compute.remat)
        traffic = hbm_bytes(config, slices, parts, state_bytes)
    else:
        flops, traffic = size.flops / slices.chips, size.hbm_bytes(config, slices, state_bytes)
    return Bounds(
        compute=flops / CHIP.bf16_flops_per_s,
        hbm=traffic / CHIP.hbm_bytes_per_s,
        ici=ici / CHIP.ici_bytes_per_s,
        dcn=dcn / slices.dcn_bytes_per_s,
        exposed=sum(collective.times * collective.waits_s for collective in collectives),
    )


def _update_bytes(config: Config, slices: Slices, state_bytes: int, parameters: int) -> float:
    """Return a chip's traffic of the optimizer: state and gradients, read and written."""
    return 2.0 * (state_bytes + 4 * parameters) * copies(config, slices) / slices.chips


def hbm_bytes(config: Config, slices: Slices, parts: int, state_bytes: int) -> float:
    """Estimate the bytes that a chip reads and writes in a step, from shapes.

    Gathered parameters: written and read in each pass, their gradients written and read, for every part of
    the batch, and read again for every piece of a layer. Optimizer: see `_update_bytes`. Activations: inputs
    and result of each product and two passes for each norm, forward; twice that backward; and forward again
    if recomputed. Loss: for each chunk the unembedding read twice and its float32 gradient read and written;
    logits written and read three times, their gradient written and read twice.
    """
    arch, compute = config.decoder, config.compute
    width = 2 if compute.dtype == "bfloat16" else 4
    P, D, F = arch.parameters(), arch.d_model, arch.d_ff
    Q, R = arch.heads * arch.K, arch.J * arch.K
    examples = config.train.batch_size / slices.chips / parts
    pieces = max(1.0, examples / compute.examples_at_once) if compute.examples_at_once else 1.0
    parameters = parts * width * P * (2 + 2 + 2 + 3 * (pieces - 1))
    optimizer = _update_bytes(config, slices, state_bytes, P)
    forward = 8 * D + 3 * (Q + 2 * R) + 3 * Q + 5 * F
    passes = 3 if list(compute.remat) == ["none"] else 4
    tokens = config.train.batch_size * config.data.sequence_length / slices.chips
    loss_chunks = parts * math.ceil(tokens / parts / compute.loss_chunk_tokens)
    loss = loss_chunks * (8 + 2 * width) * arch.vocab_size * D + tokens * arch.vocab_size * (16 + 3 * width)
    return parameters + optimizer + loss + tokens * arch.layers * forward * width * passes


def copies(config: Config, slices: Slices) -> int:
    """Return the number of copies of the parameters."""
    return config.mesh.data * (slices.count if config.mesh.across_slices == "data" else 1)


@dataclass(frozen=True)
class Anchor:
    """Published run, and its roofline by this method."""

    model: str
    parameters: int
    slice: str
    measured: float  # tokens a second and chip
    roofline: float  # the same, at the roofline
    trainer: str = "MaxText"
    length: int = 8192
    source: str = ""
    interval: bool = False

    @property
    def share(self) -> float:
        """Measured share of the roofline."""
        return self.measured / self.roofline


@dataclass(frozen=True)
class Method:
    """Ratio of published runs to their rooflines.

    Attributes:
        anchors: runs whose shares make a forecast.
        held_out: runs that a forecast is held against.
        waited: share of an anchor's step in which it waited for collectives.
        source: of the anchors.
    """

    anchors: tuple[Anchor, ...]
    held_out: tuple[Anchor, ...]
    waited: float
    source: str

    def for_size(self, parameters: int) -> "Method":
        """Restrict to runs of models within a factor of two in size, if there are any.

        The share depends on the size: runs of 70 B don't predict 8 B.
        """
        near = tuple(anchor for anchor in self.anchors if _near(anchor, parameters))
        return replace(self, anchors=near) if near else self

    @property
    def shares(self) -> tuple[float, float, float]:
        """Least, mean and largest share of the roofline."""
        shares = [anchor.share for anchor in self.anchors]
        return min(shares), mean(shares), max(shares)

    @property
    def shares_of_others(self) -> tuple[float, float]:
        """Least and largest share of the roofline of runs that stand for this program's."""
        shares = [run.share for run in self.held_out if run.interval]
        return min(shares), max(shares)

    def error(self, parameters: int) -> float:
        """Return the largest relative error on MaxText's runs of 8192 tokens and about this size.

        Each run is forecast without itself. Where there is none of this size, all from 7 to 70 B count.
        """
        runs = [run for run in self.anchors + self.held_out if run.trainer.startswith("MaxText")]
        runs = [run for run in runs if run.length == 8192 and 7e9 <= run.parameters <= 71e9]
        near = [run for run in runs if _near(run, parameters)]
        return max(abs(self.error_on(run)) for run in near or runs)

    def error_on(self, run: Anchor) -> float:
        """Return the relative error of the forecast of a run."""
        shares = [anchor.share for anchor in self.for_size(run.parameters).anchors if anchor != run]
        return run.roofline * mean(shares) / run.measured - 1


def _near(run: Anchor, parameters: int) -> bool:
    return 0.5 <= run.parameters / parameters <= 2


@cache
def method() -> Method:
    """Return the method with all published runs."""
    text = (resources.files("workload.preflight") / "published.toml").read_text(encoding="utf-8")
    content: dict[str, Any] = tomllib.loads(text)

    def run(model: str, slice_type: str, measured: float, facts: Mapping[str, Any]) -> Anchor:
        arch = Architecture(**content["models"][model])
        length = facts.get("sequence_length", content["sequence_length"])
        flops = step_flops(arch, length, "splash", facts.get("remat", content["remat"]))
        trainer, source = facts.get("trainer", "MaxText"), content["sources"][facts.get("source", "recipes")]
        peak, interval = CHIP.bf16_flops_per_s / flops, facts.get("interval", False)
        return Anchor(model, arch.parameters(), slice_type, measured, peak, trainer, length, source, interval)

    anchors = [
        run(model, name, speed, {}) for model, runs in content["runs"].items() for name, speed in runs.items()
    ]
    held_out = [
        run(facts["model"], facts["slice"], facts["measured"], facts) for facts in content["held_out"]
    ]
    return Method(tuple(anchors), tuple(held_out), content["waited"], content["source"])


@dataclass(frozen=True)
class Prediction:
    """Predicted time of a step.

    Attributes:
        bounds: the roofline's parts.
        step_s: of this program: slowest, likely, fastest.
        tokens_per_s_per_chip: of this program: slowest, likely, fastest.
        as_maxtext: tokens_per_s_per_chip as MaxText would run the model: slowest, likely, fastest.
        mfu: likely share of the peak, by convention.
        flops: of the model, per token, by convention.
    """

    bounds: Bounds
    step_s: tuple[float, float, float]
    tokens_per_s_per_chip: tuple[float, float, float]
    as_maxtext: tuple[float, float, float]
    mfu: Mapping[str, float]
    flops: Mapping[str, float]


def predict(
    config: Config,
    slices: Slices,
    attention: str,
    collectives: Sequence[Collective],
    state_bytes: int,
    size: Size | None = None,
) -> Prediction:
    """Predict a step at the shares of the roofline that published runs reached.

    MaxText's is the mean share of its runs of about this size, and their error. This program's is between the
    least and the largest share of other trainers. Shares are of whole steps, which hold those runs' waits for
    collectives: only waits beyond theirs come on top.
    """
    limits = bounds(config, slices, attention, collectives, state_bytes, size)
    parameters = size.parameters if size else config.decoder.parameters()
    by = method().for_size(parameters)
    low, high = by.shares_of_others
    error, least = method().error(parameters), limits.roofline_s
    tokens = config.train.batch_size * config.data.sequence_length / slices.chips
    steps = [least / share for share in (low, (low + high) / 2, high)]
    slow, likely, fast = (step_s + max(0.0, limits.exposed - by.waited * step_s) for step_s in steps)
    flops = model_flops(config.model, config.data.sequence_length, parameters)
    speeds = (tokens / slow, tokens / likely, tokens / fast)
    maxtext = tokens / (least / by.shares[1])
    shares = mfu(flops, speeds[1], CHIP.bf16_flops_per_s / 1e12)
    as_maxtext = (maxtext * (1 - error), maxtext, maxtext * (1 + error))
    return Prediction(limits, (slow, likely, fast), speeds, as_maxtext, shares, flops)
