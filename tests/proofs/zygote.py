"""Starts savers and restorers quickly: everything is imported once, each one is a fork.

Reads JSON lines, `{"do": "save", "run": URL}`; see `forks`.
"""
# mypy: allow-untyped-calls

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.limits import HANG_S
from tests.proofs.forks import serve
from workload.runs.store import open_store
from workload.train.checkpoints import Checkpoints
from workload.train.cluster import Cluster, Membership
from workload.train.config import CheckpointConfig

SHAPES = {"a": (64, 8), "b": (3,), "c": ()}


def state(step: int) -> dict[str, Any]:
    """Return the state of a run after a step, a function of the step."""
    return {
        name: jnp.asarray(np.random.default_rng([step, i]).standard_normal(shape).astype(np.float32))
        for i, (name, shape) in enumerate(SHAPES.items())
    }


def checkpoints(run: str) -> Checkpoints:
    return Checkpoints(open_store(run), Cluster(Membership()), CheckpointConfig(keep=1, timeout_s=60))


def restored(kept: Checkpoints) -> int:
    """The step that a start would resume from; its content must be that step's."""
    singledevicesharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=singledevicesharding), state(0)
    )
    result = kept.restore(abstract)
    expected = state(result.step)
    if result.step and not all(np.array_equal(result.state[name], expected[name]) for name in SHAPES):
        raise SystemExit(f"step {result.step} isn't what was saved")
    return result.step


def save(run: str, url: str) -> dict[str, Any]:
    """Saves step 1 undisturbed, then step 2 while the storage counts."""
    import urllib.request

    stored = checkpoints(run)
    restored(stored)
    stored.save(1, state(1))
    stored.wait()
    urllib.request.urlopen(f"{url}/count-from-here", timeout=HANG_S).close()
    stored.save(2, state(2))
    stored.wait()
    return {"saved": 2}


def restore(run: str, url: str) -> dict[str, Any]:
    """Continues: restores, saves step 3, restores that."""
    stored = checkpoints(run)
    step = restored(stored)
    stored.save(3, state(3))
    stored.wait()
    return {"step": step, "then": restored(checkpoints(run))}


def extract(run: str, url: str) -> dict[str, Any]:
    """Extracts a small stream, while the storage counts; continues with what is there."""
    import tempfile
    import urllib.request

    from tests.workload import extracting
    from workload.data import stream as streams
    from workload.runs import lease as leases

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "stream_003.safetensors"
        path.write_bytes(extracting.make_stream([7, 60, 33, 90, 12, 41, 88, 5, 64, 20, 71, 38, 55, 9]))
        config = extracting.in_many_shards(extracting.CONFIG)
        weights = extracting.save_weights(Path(scratch) / "weights", extracting.ARCH)
        store, stream = open_store(run), replace(streams.read(str(path)), url="gs://streams/3")
        urllib.request.urlopen(f"{url}/count-from-here", timeout=HANG_S).close()
        # Renewed by the clock, the lease would make requests that one extraction makes and another doesn't.
        with leases.of_stream(store, stream.about.number, "tpu-proof", every_s=600.0) as lease:
            done = extracting.extract(config, stream, weights, store, lease.check)
    return {"samples": done.samples, "shards": done.shards, "made": done.made}


def act(message: dict[str, str]) -> int:
    """Do it, and print its result."""
    do = {"save": save, "restore": restore, "extract": extract}[message["do"]]
    print(json.dumps(do(message["run"], os.environ["STORAGE_EMULATOR_HOST"])))
    return 0


if __name__ == "__main__":
    serve(act)
