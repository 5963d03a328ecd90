"""Search over batches, remat, meshes and compiler flags.

A compilation takes minutes, so every batch and remat is first estimated from shapes; the most promising are
compiled, best first, until enough of them fit. The best is then compiled with other meshes, and the best of
those without each group of flags.
"""
# mypy: allow-untyped-calls

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from views.table import aligned
from workload.errors import ConfigError, Problem
from workload.model import kernels
from workload.model.points import LAYER_POINTS
from workload.modules.config import ModuleConfig
from workload.preflight import roofline
from workload.preflight.compiler import Compiled, compile_step
from workload.preflight.slices import CHIP, GIB, Slices
from workload.preflight.verdict import MARGIN, Verdict
from workload.train import flags
from workload.train.config import Config

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16)  # examples a chip
KEPT: tuple[tuple[str, ...], ...] = (
    ("full",),
    ("save:attn_z",),
    ("save:query", "save:key", "save:value", "save:attn_z"),
    ("save:query", "save:key", "save:value", "save:attn_z", "save:attn_out"),
    ("save:query", "save:key", "save:value", "save:attn_z", "save:attn_out", "save:mlp_gate"),
    ("none",),
)
COPIES = (1, 2, 4)  # of the parameters in a slice, mesh.data


@dataclass(frozen=True)
class Candidate:
    """Variant of the config; figures are per chip.

    Attributes:
        config: of the variant.
        examples: per chip.
        estimated_bytes: of memory, from shapes.
        roofline_speed: tokens/s at the roofline of arithmetic and memory alone.
        verdict: None before the compilation.
    """

    config: Config
    examples: int
    estimated_bytes: float
    roofline_speed: float
    verdict: Verdict | None = None

    @property
    def settings(self) -> str:
        """Arguments of `--set` for this variant."""
        compute, config = self.config.compute, self.config
        remat = ",".join(f'"{word}"' for word in compute.remat)
        words = [f"train.batch_size={config.train.batch_size}", f"train.accumulate={config.train.accumulate}"]
        words += [f"compute.remat=[{remat}]", f"mesh.data={config.mesh.data}"]
        if compute.flags != ("auto",):
            named = ",".join(f'"{word}"' for word in compute.flags)
            words.append(f"compute.flags=[{named}]")
        return " ".join(words)


def candidates(config: Config, slices: Slices) -> list[Candidate]:
    """Return the variants that may fit, most promising first."""
    if isinstance(config.model, ModuleConfig):
        return _of_module(config, slices)
    variants = []
    length = config.data.sequence_length
    attention, _ = kernels.choose(config.compute.attention, "tpu", length)
    state_bytes, _ = held_bytes(config)
    for examples, remat in product(BATCHES, KEPT):
        if examples % (config.compute.examples_at_once or 1):
            continue
        changed = replace(
            _with_batch(config, examples * slices.chips),
            compute=replace(config.compute, remat=remat),
        )
        size = estimate_bytes(changed, slices)
        if size > 1.1 * CHIP.hbm_bytes:
            continue
        bounds = roofline.bounds(changed, slices, attention, (), state_bytes)
        speed = examples * config.data.sequence_length / bounds.roofline_s
        variants.append(Candidate(changed, examples, size, speed))
    return sorted(variants, key=lambda variant: (-variant.roofline_speed, variant.estimated_bytes))


def _of_module(config: Config, slices: Slices) -> list[Candidate]:
    """Return the batches of a user's module, the largest first: only the compiler knows its activations."""
    state = estimate_bytes(config, slices)
    batches = sorted({*BATCHES, config.train.batch_size // slices.chips} - {0}, reverse=True)
    return [
        Candidate(_with_batch(config, examples * slices.chips), examples, state, 0.0)
        for examples in batches
        if state <= CHIP.hbm_bytes
    ]


def _with_batch(config: Config, size: int) -> Config:
    return replace(config, train=replace(config.train, batch_size=size, accumulate=1))


def estimate_bytes(config: Config, slices: Slices) -> float:
    """Estimate a chip's memory from shapes: state, stored activations, a piece of a layer, the loss.

    Of a user's module it is the state alone.
    """
    held = sum(held_bytes(config)) * roofline.copies(config, slices) / slices.chips
    if isinstance(config.model, ModuleConfig):
        return held
    arch, compute = config.model, config.compute
    width = 2 if compute.dtype == "bfloat16" else 4
    examples = config.train.batch_size / slices.chips / config.train.accumulate
    tokens = examples * config.data.sequence_length
    sizes = _point_sizes(config)
    if list(compute.remat) == ["none"]:
        stored = sum(sizes.values())
    else:
        points = {word.partition(":")[2] for word in compute.remat if word.startswith("save:")}
        stored = arch.d_model + sum(sizes[point] for point in points)
    layers = width * tokens * arch.layers * stored
    at_once = min(examples, compute.examples_at_once or examples) * config.data.sequence_length
    one_layer = width * at_once * sum(sizes.values())
    of_a_layer = width * (arch.parameters() - arch.vocab_size * arch.d_model) / arch.layers
    matrices = (3 + min(compute.keep_gathered, arch.layers)) * of_a_layer
    loss = (4 + 2 * width) * arch.vocab_size * arch.d_model + 8 * compute.loss_chunk_tokens * arch.vocab_size
    return held + layers + one_layer + matrices + loss


def held_bytes(config: Config) -> tuple[int, int]:
    """Return the bytes of a run's state, and of gradients and frozen parameters, over all chips of a copy."""
    import jax  # where something is searched for

    from workload.train.optimizer import size_bytes, state_bytes

    if isinstance(config.model, ModuleConfig):
        from workload.train.module_step import open_module

        module = open_module(config)
        trained, frozen = module.params, size_bytes(module.frozen)
    else:
        from workload.model import decoder

        width = 2 if config.compute.dtype == "bfloat16" else 4
        frozen = width * config.decoder.parameters() if config.lora.rank else 0
        trained = decoder.trained(config.decoder, config.lora)
    return state_bytes(config, trained), 4 * sum(leaf.size for leaf in jax.tree.leaves(trained)) + frozen


def _point_sizes(config: Config) -> dict[str, int]:
    """Return the size per token of each point of a layer."""
    arch = config.decoder
    width = {"D": arch.d_model, "F": arch.d_ff, "H": arch.heads, "J": arch.J, "K": arch.K}
    return {
        point: math.prod(width[letter] for letter in shape.split("x")[2:])
        for point, shape in LAYER_POINTS.items()
    }


def search(
    config: Config,
    slices: Slices,
    judge: Callable[[Config, Compiled], Verdict],
    enough: int = 3,
    most: int = 8,
    report: Callable[[str], None] = lambda line: None,
    compile_with: Callable[[Config, Slices], Compiled] = compile_step,
) -> list[Candidate]:
    """Compile variants, best estimate first, until `enough` fit or `most` are done; then meshes and flags.

    Returns:
        The compiled variants, the fastest that fit first.

    Raises:
        ConfigError: no variant nearly fits.
    """
    compiled: list[Candidate] = []

    def evaluate(variant: Candidate) -> None:
        report(f"compiling {variant.settings}, estimated {variant.estimated_bytes / GIB:.1f} GiB")
        verdict = judge(variant.config, compile_with(variant.config, slices))
        compiled.append(replace(variant, verdict=verdict))
        report(f"  {verdict.fits}: {verdict.reason}")

    for variant in candidates(config, slices):
        fitting = sum(entry.verdict is not None and entry.verdict.fits == "yes" for entry in compiled)
        if len(compiled) == most or fitting == enough:
            break
        evaluate(variant)
    if not compiled:
        rule = f"must hold an example per chip in about {MARGIN * CHIP.hbm_bytes / GIB:.1f} GiB"
        raise ConfigError(
            "workload preflight", [Problem("--slice", slices.title, rule, "use a larger slice")]
        )
    for variations in (_with_other_meshes, _with_fewer_flags):
        best = min(compiled, key=_rank)
        if best.verdict and best.verdict.fits != "no":
            for variant in variations(best, slices):
                evaluate(variant)
    return sorted(compiled, key=_rank)


def _with_other_meshes(best: Candidate, slices: Slices) -> Iterator[Candidate]:
    """Yield the best variant with other values of mesh.data, if it may fit.

    Their memory is the compiled one plus the estimated difference.
    """
    assert best.verdict is not None
    for copies in COPIES:
        config = replace(best.config, mesh=replace(best.config.mesh, data=copies))
        more = estimate_bytes(config, slices) - best.estimated_bytes
        fits = best.verdict.compiled.hbm_bytes + more <= CHIP.hbm_bytes
        if copies != best.config.mesh.data and not slices.chips_each % copies and fits:
            yield replace(best, config=config, estimated_bytes=best.estimated_bytes + more, verdict=None)


def _with_fewer_flags(best: Candidate, slices: Slices) -> Iterator[Candidate]:
    """Yield the best variant without each of its groups of flags."""
    compute = best.config.compute
    chosen = flags.groups(compute, slices.count)
    for left_out in chosen:
        rest = tuple(name for name in chosen if name != left_out) or ("none",)
        yield replace(best, config=replace(best.config, compute=replace(compute, flags=rest)), verdict=None)


def _rank(candidate: Candidate) -> tuple[int, float]:
    order = {"yes": 0, "uncertain": 1, "no": 2}
    verdict = candidate.verdict
    if verdict is None or verdict.prediction is None:
        return 2, 0.0
    return order[verdict.fits], -verdict.prediction.tokens_per_s_per_chip[1]


def table(candidates: Sequence[Candidate]) -> str:
    """Format candidates as a table for a terminal."""
    figures = ("", "GiB", "tokens/s/chip", "range")
    rows = [(*figures, "batch", "a chip", "data", "flags", "kept for the backward pass")]
    for candidate in candidates:
        verdict, prediction = candidate.verdict, candidate.verdict.prediction if candidate.verdict else None
        size = f"{verdict.compiled.hbm_bytes / GIB:.1f}" if verdict and not verdict.compiled.refused else "-"
        slow, likely, fast = prediction.tokens_per_s_per_chip if prediction else (0.0, 0.0, 0.0)
        rows.append(
            (
                verdict.fits.replace("yes", "fits") if verdict else "no",
                size,
                f"{likely:,.0f}" if prediction else "-",
                f"{slow:,.0f}-{fast:,.0f}" if prediction else "-",
                str(candidate.config.train.batch_size),
                str(candidate.examples),
                str(candidate.config.mesh.data),
                " ".join(candidate.config.compute.flags),
                " ".join(candidate.config.compute.remat),
            )
        )
    return "\n".join(aligned(rows))
