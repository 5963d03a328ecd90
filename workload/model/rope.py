"""Rotary position embedding (Su et al., 2021) and its stretchings.

Frequencies are computed in NumPy, in float32 and in Hugging Face's order of operations, so that large
positions agree with it.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from workload.model.architecture import Architecture, RopeScaling


def frequencies(arch: Architecture, local: bool = False) -> tuple[NDArray[np.float32], float]:
    """Return the angles per position of the K/2 pairs, and attention's factor.

    Args:
        arch: the model.
        local: of its layers with a window.
    """
    K, scaling = arch.K, arch.rope_scaling
    own = local and arch.local_rope_theta > 0
    exponents = np.arange(0, K, 2, dtype=np.float32) / np.float32(K)
    theta = arch.local_rope_theta if own else arch.rope_theta
    plain = (1.0 / np.power(np.float32(theta), exponents)).astype(np.float32)
    match "none" if own else scaling.kind:
        case "linear":
            return plain / np.float32(scaling.factor), 1.0
        case "llama3":
            return _llama3(plain, scaling), 1.0
        case "yarn":
            return _yarn(plain, arch), 0.1 * math.log(max(scaling.factor, 1.0)) + 1.0
    return plain, 1.0


def _llama3(plain: NDArray[np.float32], scaling: RopeScaling) -> NDArray[np.float32]:
    """Divide low frequencies by the factor, keep high ones, and blend between."""
    wavelength = 2 * np.pi / plain
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    smooth = np.clip((scaling.original_length / wavelength - low) / (high - low), 0.0, 1.0)
    blended: NDArray[np.float32] = ((1 - smooth) * plain / scaling.factor + smooth * plain).astype(np.float32)
    return blended


def _yarn(plain: NDArray[np.float32], arch: Architecture) -> NDArray[np.float32]:
    """Keep high frequencies and divide low ones; the ramp is linear in the dimension."""
    scaling, K = arch.rope_scaling, arch.K

    def dimension(rotations: float) -> float:
        turns = scaling.original_length / (rotations * 2 * math.pi)
        return K * math.log(turns) / (2 * math.log(arch.rope_theta))

    low = max(math.floor(dimension(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension(scaling.beta_slow)), K - 1)
    ramp = np.clip((np.arange(K // 2, dtype=np.float32) - low) / max(high - low, 1e-3), 0.0, 1.0)
    stretched: NDArray[np.float32] = (plain * (1 - ramp) + plain / scaling.factor * ramp).astype(np.float32)
    return stretched


def turns(positions_BxL: Array, arch: Architecture, local: bool = False) -> tuple[Array, Array]:
    """Return cosine and sine of every position's angles, float32, of shape BxLx1xK; see `frequencies`.

    Both halves of a head carry the same angles; the first half's sine is negated.
    """
    frequency, factor = frequencies(arch, local)
    angle = positions_BxL[..., None].astype(jnp.float32) * frequency
    cos, sin = jnp.cos(angle)[:, :, None, :] * factor, jnp.sin(angle)[:, :, None, :] * factor
    return jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1)


@jax.custom_vjp
def rotate(x_BxLxHxK: Array, turn: tuple[Array, Array]) -> Array:
    """Rotate the pairs (i, i + K/2) of each head by the position's angles, in float32.

    Halves are swapped before the arithmetic, so that no float32 array is half a tile wide; the gradient
    rotates the other way.
    """
    cos, sin = turn
    swapped = jnp.roll(x_BxLxHxK, x_BxLxHxK.shape[-1] // 2, axis=-1)
    return (x_BxLxHxK * cos + swapped * sin).astype(x_BxLxHxK.dtype)


def _forward(x_BxLxHxK: Array, turn: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
    return rotate(x_BxLxHxK, turn), turn


def _backward(turn: tuple[Array, Array], gradient: Array) -> tuple[Array, None]:
    cos, sin = turn
    return rotate(gradient, (cos, -sin)), None


rotate.defvjp(_forward, _backward)
