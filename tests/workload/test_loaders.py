"""Training reads what an extraction left, in bfloat16, each token once, under torch and under JAX."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.limits import HANG_S
from tests.parity import environment
from tests.workload.extracting import ARCH, CONFIG, extract, in_many_shards, make_stream, save_weights
from tests.workload.slice import cpu_devices
from workload.activations.batches import batches
from workload.activations.jax_batches import on_mesh
from workload.activations.reader import Activations
from workload.data import stream as streams
from workload.runs.store import FolderStore

POINT, SIZE = "resid_post.3", 64


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    (root / "stream_003.safetensors").write_bytes(make_stream([20 + n % 80 for n in range(40)]))
    config = replace(CONFIG, extract=replace(CONFIG.extract, points=(POINT,), dtype=request.param))
    stream = streams.read(str(root / "stream_003.safetensors"))
    store = FolderStore(root / "run")
    extract(in_many_shards(config), stream, save_weights(root / "weights", ARCH), store)
    return root / "run"


def everything(run: Path) -> NDArray[Any]:
    """All tokens' values as bits, sorted."""
    values = np.concatenate([shard.read(POINT) for shard in Activations(str(run)).shards()])
    return rows(values.view(np.int16) if values.dtype.name == "bfloat16" else values)


def rows(values: NDArray[Any]) -> NDArray[Any]:
    """Sorted as wholes, so that equal arrays hold equal rows as often."""
    return values[np.lexsort(values.T)]


def test_batches_are_what_jax_takes_in_the_dtype_that_is_kept(run: Path) -> None:
    activations = Activations(str(run))
    first = jnp.asarray(next(batches(activations, POINT, SIZE)))
    assert first.shape == (SIZE, ARCH.d_model)
    assert first.dtype == activations.open(activations.names[0]).read(POINT).dtype


def test_parts_of_an_epoch_share_its_tokens_out(run: Path) -> None:
    activations = Activations(str(run))
    parts = [list(batches(activations, POINT, SIZE, seed=3, part=part, parts=3)) for part in range(3)]
    assert all(parts)
    concatenate = np.concatenate([batch for part in parts for batch in part])
    assert np.array_equal(rows(concatenate.view(everything(run).dtype)), everything(run))
    with pytest.raises(ValueError, match="part must be between 0 and 2, not 3"):
        next(batches(activations, POINT, SIZE, part=3, parts=3))


@pytest.mark.prove
@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 3])
def test_torchs_workers_see_each_token_once_in_the_dtype_that_is_kept(
    run: Path, workers: int, tmp_path: Path
) -> None:
    script = Path(environment.__file__).with_name("batches.py")
    search = ":".join([str(environment.ROOT), *(path for path in sys.path if path.endswith("site-packages"))])
    out = tmp_path / "seen.npz"
    line = [environment.python(), script, search, str(run), POINT, str(SIZE), str(workers), str(out)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    seen = np.load(out)
    stored = Activations(str(run)).open(Activations(str(run)).names[0]).read(POINT).dtype.name
    assert str(seen["dtype"]) == f"torch.{stored}"
    assert seen["sizes"].max() == SIZE
    assert np.array_equal(rows(seen["values"]), everything(run))


def test_a_mesh_gets_batches_of_one_size_split_over_its_data(run: Path) -> None:
    """Over four parts of the data, two copies each."""
    whole = everything(run)
    with cpu_devices(8):
        mesh = jax.make_mesh((4, 2), ("data", "fsdp"))
        result = list(on_mesh(Activations(str(run)), POINT, SIZE, mesh, seed=3))
        assert {len(batch.sharding.device_set) for batch in result} == {8}
        assert {part.data.shape for part in result[0].addressable_shards} == {(SIZE // 4, ARCH.d_model)}
        seen = np.concatenate([np.asarray(batch) for batch in result])
    assert seen.dtype == Activations(str(run)).open(Activations(str(run)).names[0]).read(POINT).dtype
    assert len(seen) == len(whole) // SIZE * SIZE
    # Documents that begin alike have equal rows.
    assert Counter(row.tobytes() for row in seen) <= Counter(row.tobytes() for row in whole)


def test_a_batch_that_a_mesh_cant_split_is_refused(run: Path) -> None:
    mesh = jax.make_mesh((1,), ("data",))
    activations = Activations(str(run))
    assert next(on_mesh(activations, POINT, 7, mesh)).shape == (7, ARCH.d_model)
    wide = jax.sharding.AbstractMesh((4,), ("data",))
    with pytest.raises(ValueError, match=r"size, 7, must be a multiple of 4: the mesh's axis data"):
        next(on_mesh(activations, POINT, 7, wide))  # type: ignore[arg-type]
