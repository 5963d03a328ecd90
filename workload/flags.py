"""Compiler options, one dated table: what a run compiles with is what preflight compiled with.

For v6e they are the groups that MaxText's Llama-3.1-8B recipes for Trillium set, as of
2026-08 (AI-Hypercomputer/maxtext benchmarks/xla_flags_library.py at e591f30cb), less those for
host offload, which are added where a config offloads. They belong to a version of the compiler.
"""

import jax

from workload.config import Config

Options = dict[str, str | bool | int]

_ON, _OFF = "true", "false"

V6E: Options = {
    # VMEM for the kernels of a fusion, in KiB: larger tiles for dense matrix products.
    "xla_tpu_scoped_vmem_limit_kib": "98304",
    # Layouts that let gradients be reduced without a copy.
    "xla_tpu_use_minor_sharding_for_major_trivial_input": _ON,
    "xla_tpu_relayout_group_size_threshold_for_reduce_scatter": "1",
    "xla_tpu_assign_all_reduce_scatter_layout": _ON,
}

# Gathers of parameters run beside the matrix products before them. MaxText sets these for v6e; libtpu
# 0.0.50 (JAX 0.12) refuses them there as "not supported on platforms other than TPU v5e".
GATHERS_BESIDE_PRODUCTS: Options = {
    "xla_tpu_enable_async_collective_fusion": _ON,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": _ON,
    "xla_tpu_enable_async_collective_fusion_multiple_steps": _ON,
    "xla_tpu_overlap_compute_collective_tc": _ON,
    "xla_enable_async_all_gather": _ON,
}

# Gradients that slices sum over the datacenter network overlap with the backward pass.
ACROSS_SLICES: Options = {
    "xla_tpu_enable_data_parallel_all_reduce_opt": _ON,
    "xla_tpu_data_parallel_opt_different_sized_ops": _ON,
}

# Tensors on their way to and from the host's memory overlap with the layers beside them.
OFFLOAD: Options = {
    "xla_tpu_enable_all_experimental_scheduler_features": _ON,
    "xla_tpu_enable_scheduler_memory_pressure_tracking": _ON,
    "xla_tpu_host_transfer_overlap_limit": "24",
    "xla_max_concurrent_host_send_recv": "100",
    "xla_tpu_scheduler_percent_shared_memory_limit": "100",
}


def options(config: Config, platform: str, slices: int = 1) -> Options | None:
    """What to hand to `compile(compiler_options=...)`; None for the compiler's own choice.

    Args:
        config: the run's.
        platform: `tpu`, `gpu` or `cpu`, where the step will run.
        slices: how many slices take part.
    """
    if platform == "tpu":
        chosen = dict(V6E)
        if jax.__version_info__ < (0, 11):
            chosen |= GATHERS_BESIDE_PRODUCTS
        if slices > 1:
            chosen |= ACROSS_SLICES
        if any(word.startswith("offload:") for word in config.compute.remat):
            chosen |= OFFLOAD
        return chosen
    if platform == "cpu" and config.compute.quick_compile:
        quick: Options = {"xla_backend_optimization_level": 0}
        if jax.__version_info__ < (0, 11):  # Python 3.11's lock has 0.10.2; 0.12 refuses the option
            quick["xla_cpu_use_fusion_emitters"] = False
        return quick
    return None
