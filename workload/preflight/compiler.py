"""Compilation of a run's step for a slice by XLA's TPU compiler, on a machine without a TPU.

The compiler is part of libtpu and needs no chip (jax.experimental.topologies). Results are cached by step,
slice and compiler.
"""
# mypy: allow-untyped-calls

import hashlib
import importlib.metadata
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workload import print_progress
from workload.errors import WorkloadError
from workload.model.kernels import tokamax_version
from workload.modules import source as module_source
from workload.modules.config import ModuleConfig
from workload.preflight.hlo import HloProgram
from workload.preflight.quiet import quiet
from workload.preflight.schedule import Collective, Rates, Schedule
from workload.preflight.slices import CHIP, GIB, Slices
from workload.train.config import Config

if TYPE_CHECKING:  # JAX is imported once its environment is set
    from workload.train.update import TrainStep

FORMAT = 4  # of cached results


class PreflightError(WorkloadError):
    """The step can't be compiled, for another reason than its size."""


@dataclass(frozen=True)
class Buffer:
    """Large buffer in a chip's memory."""

    size_bytes: int
    shapes: str


@dataclass(frozen=True)
class Compiled:
    """Compiled step on a slice; all sizes are per chip.

    Attributes:
        refused: the compiler's message if the step can't fit; the sizes are 0 then.
        arguments_bytes: parameters and optimizer state, which are updated in place.
        temporaries_bytes: peak of the temporaries.
        outputs_bytes: results that replace no argument.
        code_bytes: the program.
        largest: largest temporaries, in descending order.
        collectives: communication between chips.
        attention: the chosen kernel.
        compile_s: duration of the compilation.
        compiler: versions of jax and libtpu.
        state_bytes: of a checkpoint: trained parameters and the optimizer's state, of all chips.
        parameters: of a user's module; 0 for the decoder.
        flops: of all products of a user's module in a step, on all chips; 0 for the decoder.
        program_flops: of a chip's matrix products in the compiled program, those of kernels left out.
        kernels: number of runs in a step of each kernel, by its name.
    """

    refused: str
    arguments_bytes: int
    temporaries_bytes: int
    outputs_bytes: int
    code_bytes: int
    largest: tuple[Buffer, ...]
    collectives: tuple[Collective, ...]
    attention: str
    compile_s: float
    compiler: str
    state_bytes: int
    parameters: int = 0
    flops: float = 0.0
    program_flops: float = 0.0
    kernels: Mapping[str, int] = field(default_factory=dict)

    @property
    def hbm_bytes(self) -> int:
        """Sum of all sizes."""
        return self.arguments_bytes + self.temporaries_bytes + self.outputs_bytes + self.code_bytes


def compiler_versions() -> str:
    """Return the versions of the compiler, a part of the cache key.

    Raises:
        PreflightError: libtpu isn't installed.
    """
    try:
        return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "libtpu"))
    except importlib.metadata.PackageNotFoundError as error:
        fix = "pip install jinja2 'jax[tpu]' (Linux on x86_64; no TPU is needed)"
        raise PreflightError(
            f"preflight needs {error.name}, which contains the TPU compiler\n    fix: {fix}"
        ) from None


def cache_folder() -> Path:
    """Return the folder of cached results."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("TPU_CACHE") or Path(home) / "tpu-pulumi") / "preflight"


def key(config: Config, slices: Slices) -> str:
    """Return the cache key: a digest of step, slice, chip, compiler and this package's sources."""
    source = hashlib.sha256()
    package = Path(__file__).parents[1]
    steps = ("module_step", "lora_step", "step")
    step = (
        f"train/{name}.py" for name in (*steps, "update", "sharding", "optimizer", "optax_names", "flags")
    )
    for name in (*step, "model", "modules", "preflight/hlo.py", "preflight/schedule.py"):
        path = package / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            source.update(file.read_bytes())
    if isinstance(config.model, ModuleConfig):
        source.update(module_source.digest(config.model.module).encode())
    inputs = {
        "format": FORMAT,
        "config": {
            name: asdict(getattr(config, name)) for name in ("model", "optimizer", "lora", "compute", "mesh")
        },
        "length": config.data.sequence_length,
        "batch": [config.train.batch_size, config.train.accumulate],
        "slices": asdict(slices),
        "chip": asdict(CHIP),
        "tokamax": tokamax_version(),
        "compiler": compiler_versions(),
        "source": source.hexdigest(),
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]


def lookup(config: Config, slices: Slices) -> Compiled | None:
    """Return a cached result, if there is one; needs no JAX."""
    try:
        path = cache_folder() / f"{key(config, slices)}.json"
        return _from_json(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, PreflightError):
        return None


def compile_step(config: Config, slices: Slices, use_cache: bool = True) -> Compiled:
    """Compile the config's step for the slices, or return the cached result.

    Raises:
        ConfigError: the config doesn't divide over the slices.
        PreflightError: the compiler failed for another reason than size.
    """
    if use_cache and (known := lookup(config, slices)):
        return known
    path = cache_folder() / f"{key(config, slices)}.json"
    compiled = _compile(config, slices)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_text(json.dumps(asdict(compiled)) + "\n")
        part.replace(path)
    except OSError as error:  # costs time later, not the result
        print_progress(f"not cached: {path}: can't be written: {error.strerror}")
    return compiled


def _from_json(content: dict[str, Any]) -> Compiled:
    content["largest"] = tuple(Buffer(**entry) for entry in content["largest"])
    content["collectives"] = tuple(Collective(**entry) for entry in content["collectives"])
    return Compiled(**content)


def without_tpu() -> None:
    """Let JAX compile for absent chips; call it before JAX is imported.

    The host's platform is the CPU, there is no metadata server, and other processes may compile at the
    same time.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"


def chips(slices: Slices) -> list[list[Any]]:
    """Return the chips of slices, which needn't exist, to compile for."""
    from jax.experimental import topologies

    from workload.train.sharding import by_slice

    several = {"num_slices": slices.count} if slices.count > 1 else {}
    topology = topologies.get_topology_desc(
        topology_name=f"v6e:{slices.topology}",
        platform="tpu",
        chips_per_host_bounds=slices.host_bounds,
        **several,
    )
    return by_slice(topology.devices, slices.count)


def _compile(config: Config, slices: Slices) -> Compiled:
    versions = compiler_versions()
    without_tpu()
    with tempfile.TemporaryDirectory(prefix="preflight-") as scratch, quiet(Path(scratch) / "log") as log:
        import jax

        jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])  # it may have been imported before
        from workload.train import flags
        from workload.train.sharding import make_mesh
        from workload.train.steps import make_step

        begun = time.monotonic()
        try:
            grouped = chips(slices)
            step = make_step(config, make_mesh(config.mesh, grouped), "tpu", len(grouped))
            state = step.state_bytes
            lowered = step.lower()
            dump = Path(scratch) / "dump"
            chosen = {
                **(flags.options(config.compute, "tpu", slices.count) or {}),
                "xla_dump_to": str(dump),
                "xla_dump_hlo_as_text": True,
            }
            with without_cache():
                compiled = lowered.compile(compiler_options=chosen)
        except jax.errors.JaxRuntimeError as error:
            refused = _out_of_memory(str(error))
            if not refused:
                raise PreflightError(f"the compiler failed: {error}\n    fix: {log.hint()}") from error
            took = time.monotonic() - begun
            return Compiled(
                refused, 0, 0, 0, 0, (), (), step.attention, took, versions, state, **_counted(step)
            )
        took = time.monotonic() - begun
        memory = compiled.memory_analysis()
        temporaries_bytes, largest = buffers(dump)
        program = HloProgram(compiled.as_text(), slices.count)
        rates = Rates(dcn_bytes_per_s=slices.dcn_bytes_per_s)
        return Compiled(
            refused="",
            arguments_bytes=memory.argument_size_in_bytes,
            temporaries_bytes=temporaries_bytes,
            outputs_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
            code_bytes=memory.generated_code_size_in_bytes,
            largest=largest,
            collectives=tuple(Schedule(program, slices.chips_each, rates).collectives),
            attention=step.attention,
            compile_s=took,
            compiler=versions,
            state_bytes=state,
            program_flops=program.matmul_flops(),
            kernels=program.kernels(),
            **_counted(step),
        )


def _counted(step: "TrainStep") -> dict[str, Any]:
    """Return parameters and FLOPs of a module's step; of the decoder's nothing: its settings give both."""
    flops = getattr(step, "flops", None)
    return {} if flops is None else {"parameters": step.parameters, "flops": flops}


@contextmanager
def without_cache() -> Iterator[None]:
    """Disable JAX's compilation cache: it can't load executables for absent chips.

    JAX evaluates the setting once, so the cache is reset after each change.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    before = jax.config.values["jax_enable_compilation_cache"]

    def enable(value: bool) -> None:
        jax.config.update("jax_enable_compilation_cache", value)
        compilation_cache.reset_cache()

    enable(False)
    try:
        yield
    finally:
        enable(before)


def _out_of_memory(message: str) -> str:
    """Return the line of a refusal that names the sizes; empty for any other error."""
    if "RESOURCE_EXHAUSTED" not in message and "exceeds available HBM" not in message:
        return ""
    lines = [line.strip() for line in message.splitlines() if "HBM" in line or "hbm" in line]
    return (lines or [message.splitlines()[0]])[0]


_ALLOCATION = re.compile(r"^allocation \d+: size (\d+)(?:, color (\d+))?(?:, page \d+)?, (.*)$", re.MULTILINE)
_LARGEST = re.compile(r"^ +\S+ *\( *\d+%\); +([\d.]+)([KMG]i?B|B); +(\d+); +\d+; (.*)$", re.MULTILINE)
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": GIB}


def buffers(dump: Path) -> tuple[int, tuple[Buffer, ...]]:
    """Return the size of the heap of temporaries in HBM, and its largest entries; see `temporaries`."""
    (report,) = dump.glob("*after_optimizations-memory-usage-report.txt")
    hbm = report.read_text().split("Memory Space:")[1]
    section = next((part for part in hbm.split("cumulative_size;") if "GiB(" in part or "MiB(" in part), "")
    largest = [
        Buffer(round(float(size) * _UNITS[unit]), shapes)
        for size, unit, _, shapes in _LARGEST.findall(section)
    ]
    return temporaries(allocations(dump)), tuple(largest[:8])


def allocations(dump: Path) -> list[tuple[int, str, str]]:
    """Read the compiler's list of allocations: bytes, color of the memory (empty: HBM) and use of each."""
    (assignment,) = dump.glob("*after_optimizations-buffer-assignment.txt")
    return [(int(size), color, use) for size, color, use in _ALLOCATION.findall(assignment.read_text())]


def temporaries(listed: Sequence[tuple[int, str, str]]) -> int:
    """Return the size of the heap of temporaries in HBM, from `allocations`.

    On TPU `memory_analysis().temp_size_in_bytes` includes the arguments, which are apart here.

    Raises:
        PreflightError: the format of the list is unknown.
    """
    sizes = [size for size, color, use in listed if not color and use.startswith("preallocated-temp")]
    if not sizes:
        raise PreflightError("the compiler lists no temporaries, or in an unknown format")
    return max(sizes)
