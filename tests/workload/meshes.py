"""Trains a small model on each of some meshes and writes the losses down.

python -m tests.workload.meshes '{"fsdp": {"mesh.data": 1}}' losses.json
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from workload.model import decoder
from workload.train import config as configs
from workload.train.sharding import by_slice, make_mesh
from workload.train.step import Step

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
}


def losses(settings: dict[str, Any]) -> list[float]:
    """Eight steps on random documents."""
    count, slices = settings.pop("devices", 8), settings.pop("slices", 1)
    overrides = [f"{key}={json.dumps(value)}" for key, value in {**SETTINGS, **settings}.items()]
    config = configs.load("tiny.toml", overrides)
    devices = jax.devices()[:count]
    mesh = make_mesh(config.mesh, by_slice(devices, slices))
    step = Step(config, mesh, "cpu")

    def first(path: Any, leaf: Any) -> jax.Array:
        values = decoder.draw(path[-1].key, leaf.shape, config.model, 0)
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: values[index])

    params = jax.tree_util.tree_map_with_path(first, step.state["params"])
    state = {"params": params, "opt_state": step.first_optimizer_state(params)}
    update = step.compile()
    generator = np.random.default_rng(0)
    losses_of_steps = []
    for _ in range(8):
        tokens = generator.integers(0, 264, (16, 49)).astype(np.int32)
        segments = np.cumsum(generator.random((16, 49)) < 0.05, axis=1).astype(np.int32)
        batch = {"tokens_BxL1": tokens, "segments_BxL1": segments}
        state, metrics = update(state, jax.device_put(batch, step.by_example))
        losses_of_steps.append(float(metrics["loss"]))
    return losses_of_steps


if __name__ == "__main__":
    meshes = json.loads(sys.argv[1])
    Path(sys.argv[2]).write_text(json.dumps({name: losses(settings) for name, settings in meshes.items()}))
