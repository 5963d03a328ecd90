"""Waits for collectives, from a schedule: link time less the cycles that the chip has meanwhile."""

import pytest

from workload.preflight.hlo import HloProgram
from workload.preflight.schedule import Collective, Rates, Schedule

# A cycle is a second, and a byte takes a second on the links: 4 chips gather 64 bytes each in 48 s.
RATES = Rates(cycles_per_s=1, ici_bytes_per_s=1, dcn_bytes_per_s=1)
GATHER = "replica_groups={{0,1,2,3}}, dimensions={0}"
FUNCTIONS = f"""
%gathers (p: f32[4]) -> f32[16] {{
  %p = f32[4]{{0}} parameter(0)
  ROOT %gather = f32[16]{{0}} all-gather(%p), channel_id=1, {GATHER}
}}

%wrapped (p.5: f32[4]) -> f32[16] {{
  %p.5 = f32[4]{{0}} parameter(0)
  ROOT %call = f32[16]{{0}} call(%p.5), to_apply=%gathers
}}

%first (p.1: f32[4]) -> f32[16] {{
  %p.1 = f32[4]{{0}} parameter(0)
  %part.1 = f32[16]{{0}} all-gather(%p.1), channel_id=2, {GATHER}, frontend_attributes={{chain_id="0"}}
  ROOT %custom-call.1 = f32[16]{{0}} custom-call(%part.1), custom_call_target="AsyncCollectiveStart"
}}

%middle (p.2: f32[4]) -> f32[16] {{
  %p.2 = f32[4]{{0}} parameter(0)
  %part.2 = f32[16]{{0}} all-gather(%p.2), channel_id=2, {GATHER}, frontend_attributes={{chain_id="0"}}
  ROOT %tuple = f32[16]{{0}} add(%p.2, %part.2)
}}

%last (p.3: f32[4]) -> f32[16] {{
  %p.3 = f32[4]{{0}} parameter(0)
  %part.3 = f32[16]{{0}} all-gather(%p.3), channel_id=2, {GATHER}, frontend_attributes={{chain_id="0"}}
  ROOT %custom-call.2 = f32[16]{{0}} custom-call(%p.3, %part.3), custom_call_target="AsyncCollectiveDone"
}}
"""
# The ways in which the TPU's compiler begins a collective and goes on, as it spells them.
STARTED = ("%a = (f32[4], f32[16]) all-gather-start(%x), " + GATHER,)
OFFLOADED = (
    '%a.0 = ((), (), s32[1]) call-start(), async_execution_thread="sparsecore", to_apply=%gathers',
    "%a = ((f32[4]), f32[16]) call-update(%a.0, %x)",
)
# In the text that it dumps before it generates code.
DUMPED = ('%a = ((f32[4]), f32[16]) async-start(%x), async_execution_thread="sparsecore", calls=%wrapped',)
FUSED = ("%a = (f32[4], f32[16]) fusion(%x), kind=kCustom, calls=%first",)
END = {
    STARTED: "%b = f32[16]{0} all-gather-done(%a)",
    OFFLOADED: "%b = f32[16]{0} call-done(%a)",
    DUMPED: "%b = f32[16]{0} async-done(%a)",
    FUSED: "%b = f32[16]{0} fusion(%x), kind=kCustom, calls=%last",
}


def work(cycles: int, calls: str = "") -> str:
    backend = f'backend_config={{"estimated_cycles":"{cycles}"}}'
    return f"%w{cycles} = f32[4]{{0}} fusion(%x), kind=kLoop{calls}, {backend}"


def collectives(*lines: str) -> list[Collective]:
    body = "\n".join(f"  {line}" for line in lines)
    entry = f"ENTRY %main (x: f32[4]) -> f32[16] {{\n  %x = f32[4]{{0}} parameter(0)\n{body}\n}}\n"
    return Schedule(HloProgram(f"{FUNCTIONS}\n{entry}"), 4, RATES).collectives


def test_a_sum_fused_with_the_slice_of_it_is_a_reduce_scatter_and_sends_an_array_once() -> None:
    """As the text of MaxText's step for a v6e-8 has it: jax 0.10.2, libtpu 0.0.42.1."""
    function = """
%all-reduce-scatter.2.clone.1 (p.4: f32[16]) -> f32[4] {
  %p.4 = f32[16]{0} parameter(0)
  %sum = f32[16]{0} all-reduce(%p.4), channel_id=3, replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %own = f32[4]{0} dynamic-slice(%sum, %at), dynamic_slice_sizes={4}
}
"""
    entry = """
ENTRY %main (x: f32[16]) -> f32[4] {
  %x = f32[16]{0} parameter(0)
  ROOT %f = f32[4]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.2.clone.1
}
"""
    (scattered,) = Schedule(HloProgram(function + entry), 4, RATES).collectives
    assert scattered.kind == "reduce-scatter"
    assert (scattered.size_bytes, scattered.sent_bytes, scattered.waits_s) == (64, 48, 48)


@pytest.mark.parametrize(("cycles", "waits_s"), [(0, 48), (20, 28), (48, 0), (100, 0)])
@pytest.mark.parametrize(
    "start", [STARTED, OFFLOADED, DUMPED, FUSED], ids=["start", "sparsecore", "dump", "fusion"]
)
def test_cycles_between_start_and_end_cover_link_time(
    start: tuple[str, ...], cycles: int, waits_s: float
) -> None:
    middle = ", calls=%middle" if start is FUSED else ""
    (collective,) = collectives(work(7), *start, work(cycles, middle), END[start], work(9))
    assert (collective.kind, collective.size_bytes, collective.waits_s) == ("all-gather", 64, waits_s)


def test_what_was_started_without_its_operands_sends_when_they_arrive() -> None:
    start, update = OFFLOADED
    (collective,) = collectives(start, work(40), update, work(8), END[OFFLOADED])
    assert collective.waits_s == 40


def test_a_collective_that_nothing_runs_beside_is_waited_for() -> None:
    (collective,) = collectives(work(100), f"%a = f32[16]{{0}} all-gather(%x), {GATHER}", work(101))
    assert collective.waits_s == 48


def test_a_cycle_covers_one_collective_only() -> None:
    """Both are on the links at once: the second is sent behind the first."""
    second = ("%c = (f32[4], f32[16]) all-gather-start(%x), " + GATHER, "%d = f32[16]{0} all-gather-done(%c)")
    both = collectives(*STARTED, second[0], work(50), END[STARTED], second[1])
    assert [collective.waits_s for collective in both] == [0, 46]


@pytest.mark.parametrize(
    "start", [STARTED, OFFLOADED, DUMPED, FUSED], ids=["start", "sparsecore", "dump", "fusion"]
)
def test_a_start_whose_end_is_lost_counts_as_waited_for(start: tuple[str, ...]) -> None:
    (collective,) = collectives(*start, work(100))
    assert (collective.waits_s, collective.ends) == (48, False)
