"""Model FLOPs per token and model FLOPs utilization (MFU).

Three conventions of model FLOPs are in use:

    causal      6·matmul parameters + 6·N·L·Q: attention counts the half below the diagonal
    non-causal  6·matmul parameters + 12·N·L·Q: the whole square (MaxText's until 2025; its
                published figures for v6e are in this one)
    6N          6·all parameters, and no attention at all

Forward and backward, per token, of length-L examples; recomputation by remat isn't counted. A layer with a
window counts the keys in it, and twice as many in the non-causal convention.
"""

from collections.abc import Mapping

from workload.model.architecture import Architecture
from workload.modules.config import ModuleConfig

# A chip's peak in dense bfloat16 arithmetic, by JAX's name of the device.
PEAK_TFLOPS = {
    "TPU v6 lite": 918.0,  # Google's "TPU v6e" page
    "NVIDIA H200": 989.0,  # NVIDIA's data sheet, without sparsity
    "NVIDIA H100 80GB HBM3": 989.0,
}


def matmul_parameters(arch: Architecture) -> int:
    """Count the parameters of all matrix products per token; the embedding look-up is none."""
    layer = sum(shape[1] * shape[2] for shape in arch.shapes()["layers"].values() if len(shape) == 3)
    return arch.layers * layer + arch.vocab_size * arch.d_model


def model_flops(
    model: Architecture | ModuleConfig, length: int, module_parameters: int = 0
) -> dict[str, float]:
    """Return the FLOPs per token of an example of `length` tokens, by convention; of a module 6N alone."""
    if isinstance(model, ModuleConfig):
        return {"6N": 6.0 * module_parameters}
    dense = 6.0 * matmul_parameters(model)
    causal = 12.0 * model.heads * model.K * model.keys_per_token(length)
    return {"causal": dense + causal, "non_causal": dense + 2 * causal, "6N": 6.0 * model.parameters()}


def mfu(flops: Mapping[str, float], tokens_per_s_per_chip: float, peak_tflops: float) -> dict[str, float]:
    """Return the share of a chip's peak, 0 to 1, by convention."""
    peak = peak_tflops * 1e12
    return {name: count * tokens_per_s_per_chip / peak for name, count in flops.items()}
