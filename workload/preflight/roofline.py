"""Roofline of a step: arithmetic, memory traffic and communication, each against its peak.

XLA's own estimate isn't used: it counts a loop's body once, ignores kernels and links, and is negative for a
step of 8 billion parameters. Here the arithmetic is the model's, the collectives and their exposure are the
compiled program's, and the ratio of speed to roofline is that of published runs of MaxText
(`published.toml`).
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from statistics import mean
from typing import Any

from workload.model import kernels
from workload.model.architecture import Architecture
from workload.preflight.hlo import Collective
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
    scores = 0.5 * parts["attention"] if kernels.scores_again(attention, length) else 0.0
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

    def hbm_bytes(self, config: Config, slices: Slices) -> float:
        """Estimate a chip's traffic: the optimizer's, and each temporary written and read once."""
        return 32.0 * self.parameters * copies(config, slices) / slices.chips + 2.0 * self.temporaries_bytes


@dataclass(frozen=True)
class Bounds:
    """Least seconds of a step on each resource, at its published peak.

    Attributes:
        exposed: collectives during which the chip computes nothing.
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
    size: Size | None = None,
) -> Bounds:
    """Compute the roofline of a step; `size` is that of a user's module."""
    parts = config.train.accumulate
    if size is None:
        tokens = config.train.batch_size * config.data.sequence_length / slices.chips
        arch = config.decoder
        flops = tokens * step_flops(arch, config.data.sequence_length, attention, config.compute.remat)
        traffic = hbm_bytes(config, slices, parts)
    else:
        flops, traffic = size.flops / slices.chips, size.hbm_bytes(config, slices)
    dcn_bytes_per_s = CHIP.dcn_bytes_per_s_per_host / (slices.chips_each / slices.hosts)
    seconds = [
        (collective, _sent(collective) / (dcn_bytes_per_s if collective.across else CHIP.ici_bytes_per_s))
        for collective in collectives
    ]
    return Bounds(
        compute=flops / CHIP.bf16_flops_per_s,
        hbm=traffic / CHIP.hbm_bytes_per_s,
        ici=sum(took for collective, took in seconds if not collective.across),
        dcn=sum(took for collective, took in seconds if collective.across),
        exposed=sum(took for collective, took in seconds if not collective.hidden),
    )


def _sent(collective: Collective) -> float:
    """Return the bytes that a chip sends: once per gathered or scattered array, twice per all-reduce."""
    share = (collective.group - 1) / collective.group if collective.group else 1.0
    passes = 2 if collective.kind == "all-reduce" else 1
    return collective.times * collective.size_bytes * share * passes


def hbm_bytes(config: Config, slices: Slices, parts: int) -> float:
    """Estimate the bytes that a chip reads and writes in a step, from shapes.

    Gathered parameters: written and read in each pass, their gradients written and read, for every part of
    the batch, and read again for every piece of a layer. Optimizer: a parameter's 12 bytes and its
    gradient's 4, read and written. Activations: inputs and result of each product and two passes for each
    norm, forward; twice that backward; and forward again if recomputed.
    """
    arch, compute = config.decoder, config.compute
    width = 2 if compute.dtype == "bfloat16" else 4
    P, D, F = arch.parameters(), arch.d_model, arch.d_ff
    Q, R = arch.heads * arch.K, arch.J * arch.K
    examples = config.train.batch_size / slices.chips / parts
    pieces = max(1.0, examples / compute.examples_at_once) if compute.examples_at_once else 1.0
    parameters = parts * width * P * (2 + 2 + 2 + 3 * (pieces - 1))
    optimizer = 32.0 * P * copies(config, slices) / slices.chips
    forward = 8 * D + 3 * (Q + 2 * R) + 3 * Q + 5 * F
    passes = 3 if list(compute.remat) == ["none"] else 4
    tokens = config.train.batch_size * config.data.sequence_length / slices.chips
    return parameters + optimizer + tokens * arch.layers * forward * width * passes


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

    @property
    def share(self) -> float:
        """Measured share of the roofline."""
        return self.measured / self.roofline


@dataclass(frozen=True)
class Method:
    """Ratio of published runs to their rooflines."""

    anchors: tuple[Anchor, ...]
    source: str

    def for_size(self, parameters: int) -> "Method":
        """Restrict to runs of models within a factor of two in size, if there are any.

        The share depends on the size: runs of 70 B don't predict 8 B.
        """
        near = tuple(anchor for anchor in self.anchors if 0.5 <= anchor.parameters / parameters <= 2)
        return Method(near, self.source) if near else self

    @property
    def shares(self) -> tuple[float, float, float]:
        """Least, mean and largest share of the roofline."""
        shares = [anchor.share for anchor in self.anchors]
        return min(shares), mean(shares), max(shares)

    def error(self) -> float:
        """Return the largest relative error on a run that is left out of the mean share."""
        errors = []
        for run in self.anchors:
            share = mean(anchor.share for anchor in self.anchors if anchor is not run)
            errors.append(abs(run.roofline * share / run.measured - 1))
        return max(errors)

    def error_on_another_model(self) -> float:
        """Return the same error with all runs of a model left out, as for a new model."""
        errors = []
        for run in self.anchors:
            share = mean(anchor.share for anchor in self.anchors if anchor.model != run.model)
            errors.append(abs(run.roofline * share / run.measured - 1))
        return max(errors)


def method() -> Method:
    """Return the method with all published runs."""
    text = (resources.files("workload.preflight") / "published.toml").read_text(encoding="utf-8")
    content: dict[str, Any] = tomllib.loads(text)
    anchors = []
    for model, runs in content["runs"].items():
        arch = Architecture(**content["models"][model])
        flops = step_flops(arch, content["sequence_length"], "splash", content["remat"])
        size, peak = arch.parameters(), CHIP.bf16_flops_per_s / flops
        anchors += [Anchor(model, size, name, speed, peak) for name, speed in runs.items()]
    return Method(tuple(anchors), content["source"])


@dataclass(frozen=True)
class Prediction:
    """Predicted time of a step.

    Attributes:
        bounds: the roofline's parts.
        step_s: slowest, likely, fastest.
        tokens_per_s_per_chip: slowest, likely, fastest.
        mfu: likely share of the peak, by convention.
        flops: of the model, per token, by convention.
    """

    bounds: Bounds
    step_s: tuple[float, float, float]
    tokens_per_s_per_chip: tuple[float, float, float]
    mfu: Mapping[str, float]
    flops: Mapping[str, float]


def predict(
    config: Config,
    slices: Slices,
    attention: str,
    collectives: Sequence[Collective],
    size: Size | None = None,
) -> Prediction:
    """Predict a step at the shares of the roofline that published runs of about this size reached.

    Exposed collectives are added: at half the links' rate for the slowest time, since a chip of a slice
    without wrap-around has two or three of four links, and none for the fastest. Both ends are widened by
    the method's error.
    """
    limits = bounds(config, slices, attention, collectives, size)
    parameters = size.parameters if size else config.decoder.parameters()
    by = method().for_size(parameters)
    low, mean_share, high = by.shares
    least = max(limits.compute, limits.hbm, limits.ici + limits.dcn - limits.exposed)
    slow = least / (low * (1 - by.error())) + 2 * limits.exposed
    likely = least / mean_share + limits.exposed
    fast = least / min(1.0, high * (1 + by.error()))
    tokens = config.train.batch_size * config.data.sequence_length / slices.chips
    flops = model_flops(config.model, config.data.sequence_length, parameters)
    speeds = (tokens / slow, tokens / likely, tokens / fast)
    shares = mfu(flops, speeds[1], CHIP.bf16_flops_per_s / 1e12)
    return Prediction(limits, (slow, likely, fast), speeds, shares, flops)
