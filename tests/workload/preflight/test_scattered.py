"""Sums of a parameter's gradient, as XLA's TPU compiler makes them; no TPU is needed."""
# mypy: allow-untyped-calls

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from workload.preflight.compiler import chips, without_cache, without_tpu
from workload.preflight.hlo import HloProgram
from workload.preflight.schedule import Collective, Schedule
from workload.preflight.slices import slices
from workload.train import flags
from workload.train.compute import ComputeConfig
from workload.train.config import MeshConfig
from workload.train.sharding import FSDP, make_mesh, rings
from workload.train.step import gather

pytestmark = pytest.mark.slow

WIDTH = 512


def sums(name: str, rows: int) -> list[Collective]:
    """Collectives that a gradient of some rows needs on a slice."""
    without_tpu()
    mesh = make_mesh(MeshConfig(), chips(slices(name)))
    where = PartitionSpec(FSDP)

    def gradient(kept: jax.Array, whole: jax.Array) -> Any:
        read = partial(gather, 0, jnp.bfloat16, jnp.bfloat16, rings(mesh))
        return jax.vjp(read, kept)[1](whole * 2)[0]

    program = jax.jit(
        jax.shard_map(
            gradient, mesh=mesh, in_specs=(where, PartitionSpec()), out_specs=where, check_vma=False
        )
    ).lower(
        jax.ShapeDtypeStruct((rows, WIDTH), jnp.float32, sharding=NamedSharding(mesh, where)),
        jax.ShapeDtypeStruct((rows, WIDTH), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec())),
    )
    options: Any = flags.options(ComputeConfig(), "tpu")
    with without_cache():
        compiled = program.compile(compiler_options=options)
    return Schedule(HloProgram(str(compiled.as_text())), mesh.size).collectives


@pytest.mark.parametrize(("name", "parts"), [("v6e-8", (2, 4)), ("v6e-16", (4, 4))])
@pytest.mark.parametrize("rows", [128256, 151936], ids=["Llama 3", "Qwen 3"])
def test_rows_of_any_vocabulary_are_scattered_along_both_axes(
    name: str, parts: tuple[int, int], rows: int
) -> None:
    """With the parts on the vocabulary's own axis, XLA 0.10.2 sums 128256 rows whole along the first axis."""
    scattered = sums(name, rows)
    assert [(item.kind, item.group) for item in scattered] == [("reduce-scatter", group) for group in parts]
    assert [item.size_bytes for item in scattered] == [rows * WIDTH * 2, rows * WIDTH * 2 // parts[0]]
