"""Every point of the decoder against transformers' torch models, from the same weights.

Reference tensors are recorded in tests/parity/reference; `make prove` makes them again with torch. To record:
"$(tools/setup.sh parity)" tests/parity/reference.py tests/parity/reference
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.limits import HANG_S
from tests.parity import environment
from workload.model import attention, decoder, huggingface, points
from workload.model.architecture import Architecture
from workload.model.attention import Attend

CASES = (
    "llama-gqa",
    "llama3-rope",
    "llama-linear-tied",
    "llama-wide-heads",
    "qwen2-7to1",
    "qwen2-yarn",
    "qwen3",
    "mistral",
    "mistral-window",
    "gemma3",
    "gemma3-windows-alone",
)
EXACT = 1e-5  # relative error in float32
BF16_RMS = (
    0.028  # of bfloat16 against float32; Fast-LLM's pull request 525 saw 2.75 % at most on Qwen2.5-0.5B
)


RECORDED = Path(environment.__file__).with_name("reference")


@pytest.fixture(scope="session", params=["recorded", pytest.param("made again", marks=pytest.mark.prove)])
def references(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "recorded":
        return RECORDED
    out = tmp_path_factory.mktemp("parity")
    script = RECORDED.with_name("reference.py")
    run = subprocess.run([environment.python(), script, out], capture_output=True, text=True, timeout=HANG_S)
    assert run.returncode == 0, run.stderr
    return out


def test_references_are_those_of_transformers(case: Path) -> None:
    """Recorded and made again: the same configurations, weights and, but for rounding, values."""
    recorded = RECORDED / case.name
    assert sorted(path.name for path in case.iterdir()) == sorted(path.name for path in recorded.iterdir())
    for path in case.iterdir():
        if path.suffix == ".npz":
            values, expected = np.load(path), np.load(recorded / path.name)
            assert values.files == expected.files
            for name in values.files:
                np.testing.assert_allclose(values[name], expected[name], atol=EXACT, rtol=EXACT)
        else:
            assert path.read_bytes() == (recorded / path.name).read_bytes()


@pytest.fixture(params=CASES)
def case(references: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    return references / request.param


def load(folder: Path) -> tuple[Architecture, decoder.Params]:
    arch = huggingface.read_architecture(folder)
    singledevicesharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=singledevicesharding),
        decoder.shapes(arch),
    )
    return arch, huggingface.load(folder, arch, abstract)


def run(
    folder: Path, dtype: Any, attend: Attend | None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray]:
    """Values of our decoder, those of transformers, and the mask of real tokens."""
    arch, params = load(folder)
    reference = dict(np.load(folder / "reference.npz"))
    real_BxL = reference["mask"].astype(bool)
    segments_BxL = jnp.asarray(reference["mask"], jnp.int32)
    desired = {point: list(range(arch.layers)) for point in points.LAYER_POINTS} | {"final_norm": []}

    def compute(params: decoder.Params, tokens_BxL: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        seen = decoder.capture(params, tokens_BxL, segments_BxL, arch, desired, attend, dtype)
        unembed = params[decoder.unembedding(params, arch)]
        return seen, jnp.einsum("bld,vd->blv", seen["final_norm"], unembed.astype(dtype))

    quick = {"xla_backend_optimization_level": 0}
    seen, logits = jax.jit(compute, compiler_options=quick)(params, jnp.asarray(reference["tokens"]))
    own = {point: np.asarray(value, np.float32) for point, value in seen.items()} | {
        "logits": np.asarray(logits, np.float32)
    }
    mapping = {
        name.removeprefix("point:"): value for name, value in reference.items() if name.startswith("point:")
    }
    mapping["final_norm"] = mapping["final_norm"][0]
    return own, mapping | {"logits": reference["logits"]}, real_BxL


def errors(own: np.ndarray, reshape: np.ndarray, real_BxL: np.ndarray) -> tuple[float, float]:
    """RMS and largest error over real tokens, each relative to the reference's own."""
    stacked = own.ndim > 3 or (own.ndim == 4)
    reshape = reshape.reshape(own.shape)
    keep = (slice(None), real_BxL) if stacked else (real_BxL,)
    a, b = own[keep], reshape[keep]
    rms = np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2))
    return float(rms), float(np.max(np.abs(a - b)) / np.max(np.abs(b)))


@pytest.mark.parametrize("attend", [attention.einsum], ids=["einsum"])
def test_every_point_and_the_logits_agree_in_float32(case: Path, attend: Attend) -> None:
    own, foreign, real_BxL = run(case, jnp.float32, attend)
    assert set(own) == set(foreign) == {*points.POINTS, "logits"}
    mapping = {name: errors(own[name], foreign[name], real_BxL) for name in own}
    assert max(max(pair) for pair in mapping.values()) <= EXACT, mapping


@pytest.mark.parametrize("attend", [attention.einsum], ids=["einsum"])
def test_bfloat16_stays_within_its_budget(case: Path, attend: Attend) -> None:
    own, foreign, real_BxL = run(case, jnp.bfloat16, attend)
    mapping = {name: errors(own[name], foreign[name], real_BxL)[0] for name in own}
    assert max(mapping.values()) <= BF16_RMS, mapping
    assert max(mapping.values()) > EXACT, "bfloat16 wasn't used"
