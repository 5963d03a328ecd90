"""The same losses whatever the mesh, and the same bits on the same one: 8 CPU devices in one process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.limits import HANG_S
from workload.errors import ClusterError, ConfigError
from workload.model.architecture import Architecture
from workload.train.config import Config, MeshConfig
from workload.train.sharding import by_slice, make_mesh, split_axis

pytestmark = pytest.mark.slow

# The largest difference of a loss of 6 nats over 8 steps: sums in another order, in float32.
REORDERED = 1e-5

MESHES: dict[str, dict[str, Any]] = {
    "one": {"devices": 1},
    "fsdp": {},
    "fsdp-again": {},
    "data": {"mesh.data": 8},
    "both": {"mesh.data": 2},
    "remat": {"mesh.data": 2, "compute.remat": ["full"]},
    "save": {"compute.remat": ["save:attn_z", "save:mlp_act"]},
    "pieces": {"devices": 4, "compute.remat": ["full"], "compute.examples_at_once": 1},
    "gathered": {"compute.remat": ["full"], "compute.keep_gathered": 1},
    "accumulate": {"devices": 4, "train.accumulate": 2},
    "slices": {"slices": 2},
    "slices-fsdp": {"slices": 2, "mesh.across_slices": "fsdp"},
}


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """The losses of each mesh: one process, since the number of devices is fixed once JAX runs."""
    out = tmp_path_factory.mktemp("mesh") / "losses.json"
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    line = [sys.executable, "-m", "tests.workload.meshes", json.dumps(MESHES), str(out)]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        line, env=environment, capture_output=True, text=True, timeout=HANG_S, cwd=root, check=False
    )
    assert done.returncode == 0, done.stderr
    results: dict[str, list[float]] = json.loads(out.read_text())
    return results


@pytest.mark.parametrize("name", [name for name in MESHES if name != "one"])
def test_a_mesh_changes_losses_by_rounding_alone(name: str, losses: dict[str, list[float]]) -> None:
    assert len(losses["one"]) == 8
    assert losses["one"][0] > losses["one"][-1] > 0
    assert max(abs(a - b) for a, b in zip(losses["one"], losses[name], strict=True)) < REORDERED


def test_the_same_mesh_gives_the_same_bits(losses: dict[str, list[float]]) -> None:
    assert losses["fsdp"] == losses["fsdp-again"]


class Device:
    """A chip, as far as a mesh uses it."""

    def __init__(self, slice_index: int | None, platform: str = "tpu"):
        self.slice_index, self.platform = slice_index, platform


def test_slices_lengthen_the_axis_that_the_setting_names() -> None:
    devices = by_slice([Device(index) for index in (0, 0, 0, 0, 1, 1, 1, 1)])
    assert dict(make_mesh(MeshConfig(), devices).shape) == {"data": 2, "fsdp": 4}
    mesh = make_mesh(MeshConfig(data=2), devices)
    assert dict(mesh.shape) == {"data": 4, "fsdp": 2}
    for row in mesh.devices:
        assert len({device.slice_index for device in row}) == 1, "fsdp must not leave its slice"
    assert dict(make_mesh(MeshConfig(across_slices="fsdp"), devices).shape) == {"data": 1, "fsdp": 8}
    with pytest.raises(ConfigError, match=r"mesh.data = 3: must divide the devices of a slice, 4"):
        make_mesh(MeshConfig(data=3), devices)


def test_chips_that_know_of_another_number_of_slices_are_refused() -> None:
    chips = [Device(0) for _ in range(8)]
    assert by_slice(chips) == [chips]
    with pytest.raises(ClusterError, match=r"the job has 2 slices, but the 8 chips report 1\n.*MEGASCALE"):
        by_slice(chips, 2)


def test_cpu_devices_are_dealt_out_over_the_slices_in_the_order_of_their_workers() -> None:
    devices = [Device(None, "cpu") for _ in range(6)]
    assert by_slice(devices, 3) == [devices[:2], devices[2:4], devices[4:]]


def test_every_large_parameter_is_split_and_the_small_ones_are_not() -> None:
    llama = Architecture(layers=32, d_model=4096, heads=32, kv_heads=8, d_ff=14336, vocab_size=128256)
    groups = llama.shapes()
    cut = {name: split_axis(name, shape, 256) for group in groups.values() for name, shape in group.items()}
    assert {name for name, axis in cut.items() if axis is None} == {
        "final_norm_D",
        "attention_norm_NxD",
        "mlp_norm_NxD",
    }
    assert cut["embed_VxD"] == 0
    assert cut["query_NxDxQ"] == cut["down_NxFxD"] == 1, "the axis of layers stays whole"
    # 257 bytes of vocabulary don't divide; the width does.
    assert split_axis("embed_VxD", (257, 64), 8) == 1
    assert split_axis("embed_VxD", (257, 63), 8) is None


def test_the_table_names_every_matrix() -> None:
    """A matrix that the table forgets would be copied to every chip in silence."""
    from workload.train.sharding import SPLIT

    arch = Architecture(qkv_bias=True, qk_norm=True, vocab_size=8)
    matrices = {
        name
        for group in arch.shapes().values()
        for name in group
        if len(name.rpartition("_")[2].replace("N", "").split("x")) >= 2
        and "norm" not in name
        and "bias" not in name
    }
    assert matrices == set(SPLIT)
    assert Config().mesh == MeshConfig()
