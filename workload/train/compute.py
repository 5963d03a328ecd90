"""Settings of how a step is computed: dtypes, attention, rematerialization, compiler flags."""

from dataclasses import dataclass

from settings_schema.rules import at_least, one_of
from workload.settings import WORDS, ruled


@dataclass(frozen=True)
class ComputeConfig:
    """Implementation of a step; changes results by rounding only."""

    dtype: str = ruled("float32", one_of("float32", "bfloat16"))  # of activations; parameters stay float32
    reduce_dtype: str = ruled("float32", one_of("float32", "bfloat16"))  # of gradients summed over chips
    attention: str = ruled("auto", one_of("auto", "tokamax", "splash", "einsum"))  # kernel
    # bound of attention scores, q·k / sqrt(head_dim), for tokamax's kernel, which then skips the row's
    # maximum; 0: none. Rows with a score over 85 above the bound, or with none within 85 of it, are wrong
    max_logit: float = ruled(0.0, at_least(0))
    # arithmetic of products with a layer's matrices: that of dtype, or int8 in the forward pass, by qwix
    products: str = ruled("dtype", one_of("dtype", "int8"))
    remat: WORDS = ("none",)  # values kept for the backward pass; see "Memory and layout"
    # examples that a chip passes through a layer at once; 0: all of its own. 1 saves the most memory. Fewer
    # than all put a loop into the layer, where JAX 0.10 overlaps no collective with a matmul
    examples_at_once: int = ruled(0, at_least(0))
    # number of last layers whose gathered parameters stay on every chip until the backward pass: saves a
    # third of each layer's fsdp traffic, for its size in HBM
    keep_gathered: int = ruled(0, at_least(0))
    loss_chunk_tokens: int = ruled(2048, at_least(1))  # tokens whose logits exist at once
    # on TPUs: groups of XLA flags (workload/train/flags.py); "auto": chosen for the run; or "none"
    flags: WORDS = ("auto",)
    quick_compile: bool = False  # on CPU: compile in a fifth of the time, for slower steps
