"""The same losses whatever the mesh, and the same bits on the same one: 8 CPU devices."""

import json
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from tests.workload.slice import cpu_devices
from workload.errors import ClusterError, ConfigError
from workload.model import decoder
from workload.model.architecture import Architecture
from workload.train import config as configs
from workload.train import flags
from workload.train.config import Config, MeshConfig
from workload.train.sharding import SPLIT, by_slice, make_mesh, rings, rings_of, split_axis
from workload.train.step import Step

pytestmark = pytest.mark.slow

STEPS = 4
# The largest difference of a loss of 6 nats over these steps: sums in another order, in float32.
REORDERED = 1e-5

SETTINGS = {
    "model.layers": 1,
    "model.d_model": 64,
    "model.heads": 4,
    "model.kv_heads": 2,
    "model.d_ff": 128,
    "model.vocab_size": 264,
    "model.qkv_bias": True,
    "data.sequence_length": 48,
    "train.batch_size": 16,
    "compute.loss_chunk_tokens": 40,
    "compute.quick_compile": True,
}
MESHES: dict[str, dict[str, Any]] = {
    "one": {"devices": 1},
    "fsdp": {},
    "data": {"mesh.data": 8},
    "save": {"compute.remat": ["save:attn_z", "save:mlp_act"]},
    "pieces": {
        "devices": 4,
        "compute.remat": ["full"],
        "compute.examples_at_once": 1,
        "train.accumulate": 2,
    },
    "gathered": {"compute.remat": ["full"], "compute.keep_gathered": 1},
    "slices": {"slices": 2, "compute.remat": ["full"]},
    "slices-fsdp": {"slices": 2, "mesh.across_slices": "fsdp"},
    "torus": {"torus": (2, 4)},
    "torus-parts": {"torus": (4, 2), "compute.remat": ["full"], "train.accumulate": 2},
}


@pytest.fixture(scope="module")
def devices() -> Iterator[list[jax.Device]]:
    with cpu_devices(8) as devices:
        yield devices


def losses_on(mesh: str, devices: list[jax.Device]) -> list[float]:
    """Train a small model on random documents."""
    settings = {**SETTINGS, **MESHES[mesh]}
    count, slices, torus = settings.pop("devices", 8), settings.pop("slices", 1), settings.pop("torus", None)
    config = configs.load("tiny.toml", [f"{key}={json.dumps(value)}" for key, value in settings.items()])
    step = Step(config, make_mesh(config.mesh, by_slice(devices[:count], slices)), "cpu")
    step.rings = rings_of(*torus) if torus else ()
    params = decoder.first(config.model, 0, step.shardings["params"])
    state = {"params": params, "opt_state": step.first_optimizer_state(params)}
    update = step.compile()
    generator = np.random.default_rng(0)
    losses = []
    for _ in range(STEPS):
        tokens = generator.integers(0, 264, (16, 49)).astype(np.int32)
        segments = np.cumsum(generator.random((16, 49)) < 0.05, axis=1).astype(np.int32)
        batch = {"tokens_BxL1": tokens, "segments_BxL1": segments}
        state, metrics = update(state, jax.device_put(batch, step.by_example))
        losses.append(float(metrics["loss"]))
    return losses


def test_a_mesh_changes_losses_by_rounding_alone_and_the_same_mesh_by_nothing(
    devices: list[jax.Device],
) -> None:
    flags_in_turn = flags.gathers_in_turn()
    losses = {mesh: losses_on(mesh, devices) for mesh in MESHES}
    assert losses["one"][0] > min(losses["one"]) > 0
    differences = {mesh: np.abs(np.subtract(losses[mesh], losses["one"])).max() for mesh in MESHES}
    assert max(differences.values()) < REORDERED, differences
    assert losses["slices-fsdp"] == losses["fsdp"], "eight devices in one row, both"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flags, "gathers_in_turn", lambda: not flags_in_turn)
        assert losses_on("torus", devices) == losses["torus"], "a gather copies, in whatever order"


def test_first_values_are_the_same_on_any_mesh_and_drawn_where_they_stay(devices: list[jax.Device]) -> None:
    config = configs.load("tiny.toml", [f"{key}={json.dumps(value)}" for key, value in SETTINGS.items()])
    drawn = []
    for count in (1, 8):
        step = Step(config, make_mesh(config.mesh, [devices[:count]]), "cpu")
        params = decoder.first(config.model, 0, step.shardings["params"])
        assert jax.tree.all(
            jax.tree.map(lambda leaf, place: leaf.sharding == place, params, step.shardings["params"])
        )
        drawn.append(jax.tree.map(np.asarray, params))
    jax.tree.map(np.testing.assert_array_equal, *drawn)
    assert np.std(drawn[0]["layers"]["up_NxDxF"]) == pytest.approx(64**-0.5, rel=0.05)


class Device:
    """A chip, as far as a mesh uses it."""

    def __init__(self, slice_index: int | None, platform: str = "tpu", coords: tuple[int, ...] | None = None):
        self.slice_index, self.platform, self.coords = slice_index, platform, coords


def test_chips_are_numbered_along_the_axes_of_their_torus() -> None:
    """In JAX's order a host's four chips follow one another."""
    chips = [Device(0, coords=(x, y, 0)) for corner in (0, 2) for y in (0, 1) for x in (corner, corner + 1)]
    mesh = make_mesh(MeshConfig(), [chips])
    assert [chip.coords[:2] for chip in mesh.devices[0]] == [(x, y) for x in range(4) for y in (0, 1)]
    along_x, along_y = rings(mesh)
    assert along_x == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert along_y == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert rings(make_mesh(MeshConfig(data=2), [chips])) == rings_of(2, 2), "two halves of the torus"
    assert rings(make_mesh(MeshConfig(data=4), [chips])) == (), "a single axis"
    two = make_mesh(MeshConfig(across_slices="fsdp"), [chips, chips])
    assert rings(two) == (), "two slices in a row are no torus"


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
    # JAX takes each machine for a slice.
    machines = [Device(index, "cpu") for index in range(4)]
    assert by_slice(machines, 2) == [machines[:2], machines[2:]]


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
