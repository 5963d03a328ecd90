"""Settings of how a step is computed: dtypes, attention, rematerialization, compiler flags."""

from dataclasses import dataclass

from workload.settings import WORDS, at_least, one_of, ruled


@dataclass(frozen=True)
class ComputeConfig:
    """How a step is computed; what it computes doesn't change, but for rounding."""

    dtype: str = ruled("float32", one_of("float32", "bfloat16"))  # of activations; parameters stay float32
    reduce_dtype: str = ruled("float32", one_of("float32", "bfloat16"))  # of gradients summed over chips
    attention: str = ruled("auto", one_of("auto", "splash", "cudnn", "einsum"))
    remat: WORDS = ("none",)  # what the backward pass keeps; see `model/remat.py`
    # Examples that a chip takes through a layer at once; 0: all of its own. One saves the most memory. But
    # fewer than all put a loop into the layer: as JAX 0.10 compiles it, no collective overlaps a matmul.
    examples_at_once: int = ruled(0, at_least(0))
    # Layers, counted from the last, whose parameters stay whole on every chip until the backward pass has
    # used them: of each, a third of what fsdp exchanges is saved, and takes its size in HBM instead.
    keep_gathered: int = ruled(0, at_least(0))
    loss_chunk_tokens: int = ruled(2048, at_least(1))  # tokens whose logits exist at once
    # For TPUs: groups of the table in `flags.py`, "auto" for those that the run calls for, or "none".
    flags: WORDS = ("auto",)
    quick_compile: bool = False  # on CPU: a fifth of the time to compile, for slower steps
