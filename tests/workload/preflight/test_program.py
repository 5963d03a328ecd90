"""Reading a compiled program: loops, collectives, products, each as often as it runs."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.workload.slice import cpu_devices
from workload.errors import WorkloadError
from workload.model.architecture import Architecture
from workload.preflight.hlo import HloProgram, groups_of
from workload.preflight.roofline import step_flops
from workload.preflight.schedule import Collective, Schedule
from workload.train.compute import ComputeConfig
from workload.train.config import Config, DataConfig, TrainConfig
from workload.train.flops import model_flops
from workload.train.sharding import by_slice, make_mesh
from workload.train.step import Step

pytestmark = pytest.mark.slow

# As XLA's TPU compiler writes it, cut down: a loop whose bound stands in its condition, an
# collective split into a start and a later part, one over an iota of groups.
TEXT = Path(__file__).with_name("program.txt").read_text()


def test_a_loops_body_counts_as_often_as_it_runs() -> None:
    program = HloProgram(TEXT)
    assert program.loops() == [32]
    assert program.times["body.1"] == program.times["start.1"] == 32
    assert program.matmul_flops() == 2 * 8 * 8 * 16


@pytest.mark.parametrize(
    ("left", "right", "result", "how", "products"),
    [
        ("3,8192,64", "3,64,16", "3,8192,16", "window={size=1}, dim_labels=0bf_0io->0bf", 3 * 8192 * 16 * 64),
        # A contraction over batch and tokens, as of a gradient: the window is the batch.
        ("3,512,64", "3,512,16", "64,16,1", "window={size=3}, dim_labels=0fb_0io->bf0", 3 * 512 * 64 * 16),
        # Heads as an axis of the result: the reversed window meets each of the 4 heads once, else padding.
        (
            "2,512,64,1", "4,64,32,1", "2,512,4,32",
            "window={size=1x4 pad=0_0x3_3 rhs_reversal=0x1}, dim_labels=0bf1_1io0->0b1f",
            2 * 512 * 4 * 32 * 64,
        ),
        # Both operands share an axis of 8: gaps leave one element to each place.
        (
            "8,16,64", "8,64,32", "8,16,32",
            "window={size=8 stride=7 pad=0_0 lhs_dilate=8}, dim_labels=0bf_0io->0bf", 8 * 16 * 32 * 64,
        ),
    ],
)  # fmt: skip
def test_a_matrix_product_that_is_a_convolution_has_its_products_counted(
    left: str, right: str, result: str, how: str, products: int
) -> None:
    lines = [
        "ENTRY %main (x: bf16[1]) -> bf16[1] {",
        f"  %x.1 = bf16[{left}]{{2,1,0}} parameter(0)",
        f"  %y.1 = bf16[{right}]{{2,1,0}} parameter(1)",
        f"  ROOT %z = bf16[{result}]{{2,1,0:T(8,128)(2,1)}} convolution(%x.1, %y.1), {how}, metadata={{}}",
        "}",
    ]
    assert HloProgram("\n".join(lines)).matmul_flops() == 2 * products


def test_kernels_are_counted_with_the_loops_around_them() -> None:
    call = '  %splash_fwd.3 = bf16[8,16]{1,0} custom-call(%w), custom_call_target="tpu_custom_call"'
    text = TEXT.replace("  %fusion.1 =", f"{call}\n  %fusion.1 =")
    assert HloProgram(TEXT).kernels() == {}
    assert HloProgram(text).kernels() == {"splash_fwd": 32}


def test_every_exchange_is_found_once_with_its_size_and_group() -> None:
    collectives = Schedule(HloProgram(TEXT, slices=2), devices_a_slice=2).collectives
    assert [replace(collective, waits_s=0.0) for collective in collectives] == [
        Collective("all-gather", "all-gather.1", 8 * 16 * 2, 4, True, 32),
        Collective("all-reduce", "all-reduce.1", 8 * 16 * 2 + 16, 2, True, 32),
        # Between slices the runtime sums: the program only sends and receives. Here its end is cut off.
        Collective("all-reduce", "send.1", 25 * 8 * 2, 2, True, 1, ends=False),
        Collective("all-reduce", "all-reduce.2", 4, 4, True, 1),
    ]
    across = [
        collective.name
        for collective in Schedule(HloProgram(TEXT, slices=2), devices_a_slice=4).collectives
        if collective.across
    ]
    assert across == ["send.1"]


@pytest.mark.parametrize(
    ("spelled", "groups"),
    [
        ("{{0,1},{2,3}}", [[0, 1], [2, 3]]),
        ("[2,2]<=[4]", [[0, 1], [2, 3]]),
        ("[2,2]<=[2,2]T(1,0)", [[0, 2], [1, 3]]),
        ("mesh['data'=2,'fsdp'=2] {'fsdp'}", [[0, 1], [2, 3]]),
        ("mesh['data'=2,'fsdp'=2] {'data'}", [[0, 2], [1, 3]]),
        ("mesh['data'=2,'fsdp'=2] {'data','fsdp'}", [[0, 1, 2, 3]]),
        ("{}", []),
    ],
)
def test_the_groups_of_an_exchange_are_read_however_they_are_spelled(
    spelled: str, groups: list[list[int]]
) -> None:
    assert groups_of(f"%x), channel_id=1, replica_groups={spelled}, dimensions={{0}}") == groups


def test_groups_that_cannot_be_read_are_no_exchange_within_a_slice() -> None:
    with pytest.raises(WorkloadError, match=r"unknown format .*=mesh\['a'=8\] \{'a':\(1\)2\}"):
        groups_of("%x), replica_groups=mesh['a'=8] {'a':(1)2}")


ARCH = {"layers": 4, "d_model": 256, "heads": 4, "kv_heads": 2, "d_ff": 768, "vocab_size": 1024}
LENGTH = 128  # a block of queries, so that attention does the whole square
LONGER = 416  # three blocks and a quarter


@pytest.fixture(scope="module")
def compiled() -> dict[tuple[str, int, int], HloProgram]:
    """A step for 8 CPU devices by remat, layers whose parameters are kept, and length; 15 s."""
    variants = [(remat, 0, length) for remat in ("none", "full") for length in (LENGTH, LONGER)]
    variants += [(remat, 1, LENGTH) for remat in ("none", "full")]
    programs = {}
    with cpu_devices(8) as devices:
        for remat, kept, length in variants:
            compute = ComputeConfig(remat=(remat,), keep_gathered=kept)
            config = Config(
                model=Architecture(**ARCH),
                train=TrainConfig(batch_size=8),
                compute=compute,
                data=DataConfig(sequence_length=length),
            )
            step = Step(config, make_mesh(config.mesh, by_slice(devices)), "cpu")
            text = step.lower().compile({"xla_backend_optimization_level": 0}).as_text()
            programs[remat, kept, length] = HloProgram(text)
    return programs


@pytest.mark.parametrize(("remat", "most"), [("none", 1.02), ("full", 1.34)])
def test_the_program_computes_what_the_model_needs_and_little_more(
    remat: str, most: float, compiled: dict[tuple[str, int, int], HloProgram]
) -> None:
    """T1: all products of the compiled step over the model's own; attention does the whole square."""
    tokens = 8 * LENGTH  # on each device one example
    needed = model_flops(Architecture(**ARCH), LENGTH)["non_causal"] * tokens / 8
    ratio = compiled[remat, 0, LENGTH].matmul_flops() / needed
    assert 0.99 <= ratio <= most, ratio
    if remat == "full":
        assert ratio > 1.15, "nothing was computed again"


@pytest.mark.parametrize("remat", ["none", "full"])
def test_preflight_counts_the_blocks_of_attention_that_the_program_computes(
    remat: str, compiled: dict[tuple[str, int, int], HloProgram]
) -> None:
    expected = LONGER * step_flops(Architecture(**ARCH), LONGER, "einsum", [remat])
    # 2.3 % less with nothing kept back: of a block or two the compiler keeps the scores after all.
    assert 0.97 < compiled[remat, 0, LONGER].matmul_flops() / expected < 1.01


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("remat", ["none", "full"])
def test_a_parameter_is_gathered_once_a_pass_and_its_gradient_summed_once(
    remat: str, kept: int, compiled: dict[tuple[str, int, int], HloProgram]
) -> None:
    """Bytes on the links, from the program: two gathers and one sum of every split parameter, in float32.

    One gather, where the layer's parameters are kept.
    """
    arch = Architecture(**ARCH)
    collectives = Schedule(compiled[remat, kept, LENGTH], 8).collectives
    split = 4 * sum(
        math.prod(shape)
        for group in arch.shapes().values()
        for name, shape in group.items()
        if "norm" not in name
    )

    def exchanged(*kinds: str) -> int:
        return sum(item.size_bytes * item.times for item in collectives if item.kind in kinds)

    ends = 4 * 2 * arch.vocab_size * arch.d_model  # not in a layer: gathered once
    assert exchanged("all-gather") == (2 - kept / arch.layers) * (split - ends) + ends
    assert split <= exchanged("all-reduce", "reduce-scatter") <= split * 1.02
