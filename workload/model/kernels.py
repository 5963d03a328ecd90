"""Choice of attention by platform, and its blocks; without JAX, for preflight."""

import importlib.metadata

KINDS = ("auto", "tokamax", "splash", "einsum")
SPLASH = ("tokamax", "splash")  # kernels for TPUs with the same blocks
_LANES = 128  # a tile's width on TPU
_LARGEST_BLOCK = 2048  # of MaxText's v6e recipes; fits 8B at 8192
_SMALLEST_BLOCK = 512  # of the TPU's kernels: 128 takes several times as long


def choose(kind: str, platform: str, length: int) -> tuple[str, str]:
    """Return the implementation for a platform and length, and the reason.

    Args:
        kind: compute.attention; `auto` chooses by platform.
        platform: such as `tpu`.
        length: tokens in an example.
    """
    if kind != "auto":
        return kind, "set by compute.attention"
    if platform != "tpu":
        return "einsum", f"no kernel for {platform}"
    version = tokamax_version()
    best = "tokamax" if version else "splash"
    if unfit := problem(best, platform, length):
        return "einsum", f"{best} {unfit}"
    return best, f"the platform is tpu, {f'with tokamax {version}' if version else 'without tokamax'}"


def tokamax_version() -> str:
    """Return the version of the package whose kernel is the faster one on TPUs; empty without it."""
    try:
        return importlib.metadata.version("tokamax")
    except importlib.metadata.PackageNotFoundError:
        return ""


def problem(kind: str, platform: str, length: int) -> str:
    """Return the rule that an attention breaks, for messages; empty if it fits. See `choose`."""
    if kind in SPLASH and platform != "tpu":
        return f"is a kernel for TPUs, and this is a {platform}"
    if kind == "tokamax" and not tokamax_version():
        return "needs the package tokamax, which isn't installed"
    if kind in SPLASH and length % _LANES:
        return f"needs a data.sequence_length that {_LANES} divides, not {length}"
    return ""


def padded(length: int, window: int = 0) -> int:
    """Return the least length whose blocks are at least 512, or the whole of a shorter one."""
    while _divisor(length, window) < min(_SMALLEST_BLOCK, length):
        length += _LANES
    return length


def block_size(length: int, window: int = 0) -> int:
    """Return the largest block that divides the padded length, a multiple of 128.

    2048 at most; 512 or about a window, if a layer has one, since a block is computed whole.
    """
    return _divisor(padded(length, window), window)


def _divisor(length: int, window: int) -> int:
    largest = max(_SMALLEST_BLOCK, window // _LANES * _LANES) if window else _LARGEST_BLOCK
    block = min(_LARGEST_BLOCK, largest, length)
    while length % block:
        block -= _LANES
    return block


def computed_share(kind: str, length: int, window: int = 0) -> float:
    """Return the share of the square of scores that is computed: all, or by kernels for TPUs whole blocks.

    Args:
        kind: the implementation.
        length: tokens in an example.
        window: of the layer; 0: none.
    """
    if kind not in SPLASH:
        return 1.0
    whole, block = padded(length, window), block_size(length, window)
    computed = 0
    for first in range(0, whole, block):
        key = max(0, first - window + 1) if window else 0
        computed += block * (first + block - key // block * block)
    return computed / length**2
