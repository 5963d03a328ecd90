"""Which attention a platform gets, and in which blocks: said without JAX, for preflight too."""

KINDS = ("auto", "splash", "cudnn", "einsum")
_LANES = 128  # a tile's width on TPU
_GPUS = ("gpu", "cuda", "rocm")
_LEAST_BLOCK, _MOST_BLOCKS = 128, 16  # fewer queries make thin products, more blocks long programs
SPAN_BLOCK = 128  # queries, and keys, of a product where only documents' spans are computed
SPAN_TOKENS = 512  # that go through a layer at once then; of 256 to 2048 the fastest, docs/log.md
_LARGEST_BLOCK = 2048  # what MaxText's v6e recipes use; 8B at 8192 fits it


def choose(kind: str, platform: str, length: int, dtype: str, backward: bool = True) -> tuple[str, str]:
    """The implementation for a platform and length, and the reason, for people.

    Args:
        kind: what the config asks for; `auto` leaves it to the platform.
        platform: `tpu`, `gpu` or `cpu`, where the step will run.
        length: tokens in an example.
        dtype: of the activations.
        backward: whether gradients are asked for.
    """
    if kind != "auto":
        return kind, "compute.attention asks for it"
    best = "splash" if platform == "tpu" else "cudnn" if platform in _GPUS else ""
    unfit = problem(best, platform, length, dtype) if best else ""
    if best and not unfit:
        return best, f"the platform is {platform}"
    why = f"{best} {unfit}" if best else f"no kernel for {platform}"
    if platform == "cpu" and not backward:
        return "spans", f"{why}, and without gradients what no document spans can be skipped"
    return "einsum", why


def problem(kind: str, platform: str, length: int, dtype: str) -> str:
    """Why a config can't have the attention that it asks for; empty if it can. See `choose`."""
    if kind == "splash" and platform != "tpu":
        return f"is a kernel for TPUs, and this is a {platform}"
    if kind == "splash" and length % _LANES:
        return f"needs a data.sequence_length that {_LANES} divides, not {length}"
    if kind == "cudnn" and platform not in _GPUS:
        return f"is a kernel for GPUs, and this is a {platform}"
    if kind == "cudnn" and dtype != "bfloat16":
        return f"needs compute.dtype bfloat16, not {dtype}"
    return ""


def block_size(length: int) -> int:
    """The largest block that divides the length, 2048 at most."""
    block = min(_LARGEST_BLOCK, length)
    while length % block or block % _LANES:
        block -= _LANES if block % _LANES == 0 else block % _LANES
    return block


def query_block(length: int) -> int:
    """The queries that `einsum` attends from at once; each such block reads the keys up to its end."""
    return max(_LEAST_BLOCK, -(-length // _MOST_BLOCKS))


def computed_share(kind: str, length: int) -> float:
    """The part of the square of scores that an attention computes: blocks on the diagonal whole."""
    if kind == "cudnn":
        return 1.0
    block = block_size(length) if kind == "splash" else query_block(length)
    ends = [min(first + block, length) for first in range(0, length, block)]
    rows = [end - first for first, end in zip(range(0, length, block), ends, strict=True)]
    return sum(count * end for count, end in zip(rows, ends, strict=True)) / length**2


def scores_again(kind: str, length: int) -> bool:
    """Whether the backward pass computes the scores anew instead of reading them."""
    return kind == "splash" or (kind == "einsum" and query_block(length) < length)
