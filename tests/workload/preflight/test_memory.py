"""Memory of a step, from the compiler's own reports."""

from pathlib import Path

import pytest

from workload.preflight.compiler import Buffer, PreflightError, buffers

REPORT = """
Memory Space: default (color=0)
Total bytes: 135369440 (129.10MiB)
  cumulative_size;       size;       offset; used_by_n_values; shapes_list
  ------------------------------------------------------------
   64.00MiB( 27%);   64.00MiB;     22609920;                6; f32[2048,8192], 5×bf16[1,2048,1024]
   96.00MiB( 40%);   32.00MiB;     31555584;                4; bf16[1,2048,1024], bf16[1024,512]

Memory Space: alternate (color=1)
Total bytes: 8
"""


def dump(folder: Path, page: str, kind: str = "preallocated-temp") -> Path:
    (folder / "step.after_optimizations-memory-usage-report.txt").write_text(REPORT)
    (folder / "step.after_optimizations-buffer-assignment.txt").write_text(
        f"allocation 9: size 1048576{page}, parameter 29, shape |f32[2,128,1024]|:\n"
        f"allocation 198: size 108412960{page}, {kind}:\n"
        f"allocation 203: size 233302528, color 1{page}, preallocated-temp:\n"
    )
    return folder


@pytest.mark.parametrize("page", ["", ", page 0"], ids=["libtpu 0.0.42", "libtpu 0.0.50"])
def test_the_heap_in_hbm_is_counted_and_other_memories_are_not(page: str, tmp_path: Path) -> None:
    size, largest = buffers(dump(tmp_path, page))
    assert size == 108412960
    assert largest == (
        Buffer(64 * 2**20, "f32[2048,8192], 5×bf16[1,2048,1024]"),
        Buffer(32 * 2**20, "bf16[1,2048,1024], bf16[1024,512]"),
    )


def test_a_report_that_cannot_be_read_is_no_step_without_temporaries(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="in an unknown format"):
        buffers(dump(tmp_path, "", kind="something else"))
