"""Schedule and memory of a step, as its compiler dumps them before it generates code.

Code takes most of a compilation of 8B: it is ended once the dump is whole. A dump lacks the compiler's
estimates of cycles, so that matrix products at the chip's peak stand for them.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from workload.preflight.compiler import allocations, temporaries
from workload.preflight.hlo import HloProgram, Instruction
from workload.preflight.schedule import Schedule
from workload.preflight.slices import CHIP

_HOST = "5"  # the color of the host's memory, as S(5) of a shape
_LAST = "*after_optimizations-memory-usage-report.txt"  # of the texts
_QUIET_S = 5  # since it was last written: then it is whole


@dataclass(frozen=True)
class Dump:
    """Step of a chip, as compiled.

    Attributes:
        program: in the order of its schedule.
        arguments_bytes: state and batch in HBM.
        temporaries_bytes: peak of the temporaries in HBM.
        host_bytes: in the host's memory.
        took_s: from the start of the compilation until it was dumped.
    """

    program: HloProgram
    arguments_bytes: int
    temporaries_bytes: int
    host_bytes: int
    took_s: float


class ByProducts(Schedule):
    """Schedule in which matrix products at the chip's peak cover links, and nothing else does."""

    def computes_s(self, instruction: Instruction) -> float:
        """Return the seconds of an instruction's products."""
        return self._program.products(instruction) / CHIP.bf16_flops_per_s


@contextmanager
def folder() -> Iterator[Path]:
    """Make a folder for a dump; what a killed compilation still removes there isn't missed."""
    with tempfile.TemporaryDirectory(prefix="benchmark-", ignore_cleanup_errors=True) as path:
        yield Path(path)


def dumped(line: Sequence[str], where: Path, slices: int, more: Mapping[str, str]) -> Dump:
    """Run a compilation that dumps below a folder, until it has.

    Args:
        line: the command.
        where: the folder.
        slices: that the step runs on.
        more: environment variables.

    Raises:
        SystemExit: it ended without a dump, with the end of its output.
    """
    quiet = {"TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    log, begun = where / "log", time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            line, env={**os.environ, **quiet, **more}, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while not (whole := _whole(where)) and process.poll() is None:
                time.sleep(1)
            took_s = time.monotonic() - begun
            whole = whole or [*where.rglob(_LAST)]  # it has ended: nothing more is written
            if not whole:
                raise SystemExit(f"{' '.join(line)}\nended without a dump:\n{log.read_text()[-3000:]}")
            process.send_signal(signal.SIGSTOP)
            return read(whole[0].parent, slices, took_s)
        finally:
            process.kill()
            process.wait()


def _whole(where: Path) -> list[Path]:
    """Return the last text of a dump, once it is written."""
    return [path for path in where.rglob(_LAST) if time.time() - path.stat().st_mtime > _QUIET_S]


def read(dump: Path, slices: int = 1, took_s: float = 0.0) -> Dump:
    """Read the dump of a program."""
    (program,) = dump.glob("*after_optimizations.txt")
    listed = allocations(dump)
    return Dump(
        HloProgram(program.read_text(), slices),
        sum(size for size, color, use in listed if not color and use.startswith("parameter")),
        temporaries(listed),
        sum(size for size, color, _ in listed if color == _HOST),
        took_s,
    )
