"""Model FLOPs per token and model FLOPs utilization (MFU).

Three conventions of model FLOPs are in use:

    causal      6·matmul parameters + 6·N·L·Q: attention counts the half below the diagonal
    non-causal  6·matmul parameters + 12·N·L·Q: the whole square (MaxText's until 2025; its
                published figures for v6e are in this one)
    6N          6·all parameters, and no attention at all

Forward and backward, per token, of length-L examples; recomputation by remat isn't counted. A layer with a
window counts the keys in it, and twice as many in the non-causal convention.
"""

from dataclasses import dataclass

from workload.model.architecture import Architecture

# A chip's peak in dense bfloat16 arithmetic, by JAX's name of the device.
PEAK_TFLOPS = {
    "TPU v6 lite": 918.0,  # Google's "TPU v6e" page
    "NVIDIA H200": 989.0,  # NVIDIA's data sheet, without sparsity
    "NVIDIA H100 80GB HBM3": 989.0,
}


@dataclass(frozen=True)
class ModelFlops:
    """FLOPs per token of training, by convention."""

    causal: float
    non_causal: float
    six_n: float


def matmul_parameters(arch: Architecture) -> int:
    """Count the parameters of all matrix products per token; the embedding look-up is none."""
    layer = sum(shape[1] * shape[2] for shape in arch.shapes()["layers"].values() if len(shape) == 3)
    return arch.layers * layer + arch.vocab_size * arch.d_model


def model_flops(arch: Architecture, length: int) -> ModelFlops:
    """Return the FLOPs per token of an example of `length` tokens."""
    dense = 6.0 * matmul_parameters(arch)
    causal = 12.0 * arch.heads * arch.K * arch.keys_per_token(length)
    return ModelFlops(causal=dense + causal, non_causal=dense + 2 * causal, six_n=6.0 * arch.parameters())


def mfu(flops: ModelFlops, tokens_per_s_per_chip: float, peak_tflops: float) -> dict[str, float]:
    """Return the share of a chip's peak, 0 to 1, by convention."""
    peak = peak_tflops * 1e12
    return {
        "causal": flops.causal * tokens_per_s_per_chip / peak,
        "non_causal": flops.non_causal * tokens_per_s_per_chip / peak,
        "6N": flops.six_n * tokens_per_s_per_chip / peak,
    }
