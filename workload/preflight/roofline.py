"""How long a step should take: what it computes, reads and sends, each against its peak.

XLA's own estimate isn't used: it counts a loop's body once, knows no kernels and no time on the
links, and comes out negative for a step of 8 billion parameters. Here the arithmetic comes from
the model, collectives from the compiled program, with which of them it waits for, and the distance between
a roofline and what a chip does from runs of another program that others measured (`published.toml`).
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from statistics import mean
from typing import Any

from workload.model import kernels
from workload.model.architecture import Architecture
from workload.preflight.program import Collective
from workload.preflight.slices import CHIP, Slices
from workload.train.config import Config
from workload.train.flops import ModelFlops, mfu, model_flops

# What has to be computed again in the backward pass, and the points that spare it.
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
    """FLOPs of a forward pass per token, by part, as the program does them.

    Attention skips blocks above the diagonal; the blocks on it are computed whole.
    """
    D, F, N, K = arch.d_model, arch.d_ff, arch.layers, arch.K
    Q, R = arch.heads * K, arch.J * K
    share = kernels.computed_share(attention, length)
    return {
        "query": 2.0 * N * D * Q,
        "key": 2.0 * N * D * R,
        "value": 2.0 * N * D * R,
        "attention": 4.0 * N * Q * length * share,
        "out": 2.0 * N * Q * D,
        "gate": 2.0 * N * D * F,
        "up": 2.0 * N * D * F,
        "down": 2.0 * N * F * D,
        "unembedding": 2.0 * D * arch.vocab_size,
    }


def step_flops(arch: Architecture, length: int, attention: str, remat: Sequence[str]) -> float:
    """FLOPs per token of a step: forward, what is computed again, backward."""
    parts = forward_flops(arch, length, attention)
    again = sum(flops for part, flops in parts.items() if _again(part, remat))
    # Backward: two products for one; where it computes the scores again, five for two.
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
class Bounds:
    """The least seconds that each resource needs for a step, at its published peak.

    Attributes:
        exposed: of the collectives, those that the compiled program waits for: the chip computes nothing.
    """

    compute: float
    hbm: float
    ici: float
    dcn: float
    exposed: float = 0.0

    @property
    def binding(self) -> str:
        """The resource that needs the longest."""
        return max(("compute", "hbm", "ici", "dcn"), key=lambda name: float(getattr(self, name)))

    @property
    def roofline_s(self) -> float:
        """With everything overlapped: the longest of them."""
        return max(self.compute, self.hbm, self.ici, self.dcn)


def bounds(config: Config, slices: Slices, attention: str, collectives: Sequence[Collective]) -> Bounds:
    """The roofline of a step."""
    tokens = config.train.batch_size * config.data.sequence_length / slices.chips
    flops = step_flops(config.model, config.data.sequence_length, attention, config.compute.remat)
    parts = config.train.accumulate
    dcn_bytes_per_s = CHIP.dcn_bytes_per_s_per_host / (slices.chips_each / slices.hosts)
    seconds = [
        (one, _sent(one) / (dcn_bytes_per_s if one.across else CHIP.ici_bytes_per_s)) for one in collectives
    ]
    return Bounds(
        compute=tokens * flops / CHIP.bf16_flops_per_s,
        hbm=hbm_bytes(config, slices, parts) / CHIP.hbm_bytes_per_s,
        ici=sum(took for one, took in seconds if not one.across),
        dcn=sum(took for one, took in seconds if one.across),
        exposed=sum(took for one, took in seconds if not one.hidden),
    )


def _sent(one: Collective) -> float:
    """Bytes that a chip sends: an array gathered or scattered passes once, one summed everywhere twice."""
    others = (one.group - 1) / one.group if one.group else 1.0
    return one.times * one.size_bytes * others * (2 if one.kind == "all-reduce" else 1)


def hbm_bytes(config: Config, slices: Slices, parts: int) -> float:
    """Bytes that a chip reads and writes in a step, from shapes.

    Parameters, gathered: written and read in each pass, their gradients written and read, once
    for every part of the batch and read once more for every piece of a layer. Optimizer: all of
    a parameter's 12 bytes and its gradient's 4, in and out. Activations: each product's inputs
    and result and two passes for each norm, forward; twice that backward; and forward again
    where it is computed again.
    """
    arch, compute = config.model, config.compute
    width = 2 if compute.dtype == "bfloat16" else 4
    P, D, F = arch.parameters(), arch.d_model, arch.d_ff
    Q, R = arch.heads * arch.K, arch.J * arch.K
    copies = config.mesh.data * (slices.count if config.mesh.across_slices == "data" else 1)
    examples = config.train.batch_size / slices.chips / parts
    pieces = max(1.0, examples / compute.examples_at_once) if compute.examples_at_once else 1.0
    parameters = parts * width * P * (2 + 2 + 2 + 3 * (pieces - 1))
    optimizer = 32.0 * P / (slices.chips / copies)
    forward = 8 * D + 3 * (Q + 2 * R) + 3 * Q + 5 * F
    passes = 3 if list(compute.remat) == ["none"] else 4
    tokens = config.train.batch_size * config.data.sequence_length / slices.chips
    return parameters + optimizer + tokens * arch.layers * forward * width * passes


@dataclass(frozen=True)
class Anchor:
    """A measured run of somebody else, and what the method makes of it."""

    model: str
    parameters: int
    slice: str
    measured: float  # tokens a second and chip
    roofline: float  # the same, at the roofline

    @property
    def share(self) -> float:
        """Of the roofline, reached."""
        return self.measured / self.roofline


@dataclass(frozen=True)
class Method:
    """How far a roofline is from measured runs."""

    anchors: tuple[Anchor, ...]
    source: str

    def for_size(self, parameters: int) -> "Method":
        """By the runs of models of about that size; by all, where nobody measured one within twice of it.

        A larger model's products reach another share: runs of 70 B say nothing of one of 8 B.
        """
        near = tuple(one for one in self.anchors if 0.5 <= one.parameters / parameters <= 2)
        return Method(near, self.source) if near else self

    @property
    def shares(self) -> tuple[float, float, float]:
        """Least, mean and most of the roofline that was reached."""
        found = [anchor.share for anchor in self.anchors]
        return min(found), mean(found), max(found)

    def error(self) -> float:
        """The largest relative error on a run that the mean share was taken without."""
        errors = []
        for one in self.anchors:
            others = mean(anchor.share for anchor in self.anchors if anchor is not one)
            errors.append(abs(one.roofline * others / one.measured - 1))
        return max(errors)

    def error_on_another_model(self) -> float:
        """The same, taken without all runs of that model: what to expect of a new one."""
        errors = []
        for one in self.anchors:
            others = [anchor.share for anchor in self.anchors if anchor.model != one.model]
            errors.append(abs(one.roofline * mean(others) / one.measured - 1))
        return max(errors)


def method() -> Method:
    """The method, held against the published runs."""
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
    """What to expect; every figure is predicted until a TPU ran it.

    Attributes:
        bounds: the roofline's parts.
        step_s: slowest, likely, fastest.
        tokens_per_s_per_chip: the same.
        mfu: the likely share of the peak, by convention.
        flops: the model's, per token.
    """

    bounds: Bounds
    step_s: tuple[float, float, float]
    tokens_per_s_per_chip: tuple[float, float, float]
    mfu: Mapping[str, float]
    flops: ModelFlops


def predict(config: Config, slices: Slices, attention: str, collectives: Sequence[Collective]) -> Prediction:
    """What a step takes at the shares of the peak that published runs of about this size reached.

    What the compiled program waits for comes on top. The slow end has it at half the links' rate, since a
    chip of a slice without wrap-around has two or three of four, and the fast end has none of it; both
    are wider than the runs by how far one of them is missed by the others.
    """
    found = bounds(config, slices, attention, collectives)
    by = method().for_size(config.model.parameters())
    low, mean_share, high = by.shares
    least = max(found.compute, found.hbm, found.ici + found.dcn - found.exposed)
    slow = least / (low * (1 - by.error())) + 2 * found.exposed
    likely = least / mean_share + found.exposed
    fast = least / min(1.0, high * (1 + by.error()))
    tokens = config.train.batch_size * config.data.sequence_length / slices.chips
    flops = model_flops(config.model, config.data.sequence_length)
    speeds = (tokens / slow, tokens / likely, tokens / fast)
    shares = mfu(flops, speeds[1], CHIP.bf16_flops_per_s / 1e12)
    return Prediction(found, (slow, likely, fast), speeds, shares, flops)
