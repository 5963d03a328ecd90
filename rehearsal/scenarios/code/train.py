"""Fits a polynomial to a wave. It keeps its own checkpoint, and knows nothing of who runs it."""

import os
import time
from pathlib import Path

import einops
import jax
import jax.numpy as jnp
import numpy as np

STEPS = 600
place = Path(os.environ["CHECKPOINT_DIR"], "own", f"worker-{os.environ['WORKER_ID']}.npz")
x = einops.rearrange(jnp.linspace(-1, 1, 256), "points -> points 1") ** jnp.arange(8)
gradient = jax.jit(jax.value_and_grad(lambda w: jnp.mean((x @ w - jnp.sin(3 * x[:, 1])) ** 2)))
step, w = 0, jnp.zeros(8)
if place.exists():
    kept = np.load(place)
    step, w = int(kept["step"]), jnp.asarray(kept["w"])
print(f"einops {einops.__version__}; {f'resumed at step {step}' if step else 'from the beginning'}")
while step < STEPS:
    step, (loss, slope) = step + 1, gradient(w)
    w -= 0.3 * slope
    time.sleep(0.2)
    if step % 25 == 0:  # Cloud Storage takes one change of a name a second, and a save is three
        place.parent.mkdir(exist_ok=True)
        np.savez(place.with_suffix(".new.npz"), step=step, w=w)
        place.with_suffix(".new.npz").replace(place)
        print(f"step {step} of {STEPS}: loss {loss:.5f}")
