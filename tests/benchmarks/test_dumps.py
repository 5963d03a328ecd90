"""Compilations that end once their dump is whole, and what is read from it; nothing is compiled."""

import os
import sys
from pathlib import Path

import pytest

from benchmarks import dumps
from benchmarks.dumps import ByProducts, Dump, dumped, read
from workload.preflight.slices import CHIP

# 1024 x 1024 x 1024 products beside a gather of 4 MB, as either compiler writes them.
PROGRAM = """
%fused (p: bf16[1024,1024]) -> bf16[1024,1024] {
  %p = bf16[1024,1024]{1,0} parameter(0)
  ROOT %c = bf16[1024,1024]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (x: f32[250000], y: bf16[1024,1024]) -> f32[1000000] {
  %x = f32[250000]{0} parameter(0)
  %y = bf16[1024,1024]{1,0} parameter(1)
  %a = (f32[250000], f32[1000000]) all-gather-start(%x), replica_groups={{0,1,2,3}}, dimensions={0}
  %f = bf16[1024,1024]{1,0} fusion(%y), kind=kOutput, calls=%fused
  ROOT %b = f32[1000000]{0} all-gather-done(%a)
}
"""
ALLOCATIONS = """allocation 0: size 512, thread-local:
allocation 1: size 3000, parameter 1, shape |f32[750]| at ShapeIndex {}, maybe-live-out:
allocation 2: size 1000, page 0, parameter 0, shape |f32[250]| at ShapeIndex {}:
allocation 3: size 700, preallocated-temp:
allocation 4: size 90, color 1, preallocated-temp:
allocation 5: size 8000, color 5, preallocated-temp:
allocation 6: size 500, color 5, parameter 2, shape |f32[125]| at ShapeIndex {}:
"""
REPORT = "Memory Space: default (color=0)\n"


def write(folder: Path) -> Path:
    name = "module_0000.step.after_optimizations"
    folder.mkdir()
    (folder / f"{name}.txt").write_text(PROGRAM)
    (folder / f"{name}-buffer-assignment.txt").write_text(ALLOCATIONS)
    (folder / f"{name}-memory-usage-report.txt").write_text(REPORT)
    return folder


def test_memory_of_the_chip_and_of_the_host_are_told_apart(tmp_path: Path) -> None:
    dump = read(write(tmp_path / "dump"))
    assert (dump.arguments_bytes, dump.temporaries_bytes, dump.host_bytes) == (4000, 700, 8500)


def test_products_at_the_chips_peak_cover_links(tmp_path: Path) -> None:
    program = read(write(tmp_path / "dump")).program
    (gather,) = ByProducts(program, 4).collectives
    links_s, products_s = 3e6 / CHIP.ici_measured_bytes_per_s, 2 * 1024**3 / CHIP.bf16_flops_per_s
    assert gather.waits_s == pytest.approx(links_s - products_s)
    assert program.matmul_flops() == 2 * 1024**3


def test_a_compilation_is_ended_once_it_has_dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "_QUIET_S", 0.0)
    made, where = write(tmp_path / "made"), tmp_path / "where"
    where.mkdir()
    code = f"""
import os, pathlib, signal
print("process", os.getpid(), flush=True)
dump = pathlib.Path({str(where / "dump")!r})
dump.mkdir()
for path in sorted(pathlib.Path({str(made)!r}).iterdir(), key=lambda path: "report" in path.name):
    (dump / "part").write_bytes(path.read_bytes())
    (dump / "part").rename(dump / path.name)
signal.pause()
"""
    dump = dumped([sys.executable, "-c", code], where, 1, {})
    assert isinstance(dump, Dump)
    process = int((where / "log").read_text().split()[1])
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_compilation_that_fails_is_named_with_the_end_of_its_output(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"ended without a dump:\nno such flag"):
        dumped([sys.executable, "-c", "print('no such flag'); raise SystemExit(1)"], tmp_path, 1, {})
