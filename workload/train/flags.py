"""Compiler options in one dated table, shared by runs and preflight.

For v6e they are the groups that MaxText's Llama-3.1-8B recipes for Trillium set, as of
2026-08 (AI-Hypercomputer/maxtext benchmarks/xla_flags_library.py at e591f30cb), less those for
host offload, which are added where a config offloads. They belong to a version of the compiler.
"""

from collections.abc import Sequence

from workload.train.compute import ComputeConfig

Options = dict[str, str | bool | int]

_ON = "true"

# By their names in compute.flags.
GROUPS: dict[str, Options] = {
    # VMEM for the kernels of a fusion, in KiB: larger tiles for dense matrix products.
    "vmem": {"xla_tpu_scoped_vmem_limit_kib": "98304"},
    # Layouts that let gradients be reduced without a copy.
    "layouts": {
        "xla_tpu_use_minor_sharding_for_major_trivial_input": _ON,
        "xla_tpu_relayout_group_size_threshold_for_reduce_scatter": "1",
        "xla_tpu_assign_all_reduce_scatter_layout": _ON,
    },
    # Gathers of parameters run beside the matrix products before them. MaxText sets these for v6e; libtpu
    # 0.0.50 (JAX 0.12) refuses them there as "not supported on platforms other than TPU v5e".
    "gathers": {
        "xla_tpu_enable_async_collective_fusion": _ON,
        "xla_tpu_enable_async_collective_fusion_fuse_all_gather": _ON,
        "xla_tpu_enable_async_collective_fusion_multiple_steps": _ON,
        "xla_tpu_overlap_compute_collective_tc": _ON,
        "xla_enable_async_all_gather": _ON,
    },
    # Sums of gradients run on the chip's SparseCores, unmerged, and begin as each gradient is there. The
    # latency multipliers are those that measured best on a v6e-8 (the repository of `ici_measured_gb_per_s`
    # in v6e.toml).
    "reductions": {
        "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": _ON,
        "xla_tpu_enable_sparse_core_collective_offload_all_reduce": _ON,
        "xla_tpu_enable_reduce_scatter_offload_tracing": _ON,
        "xla_tpu_enable_all_reduce_offload_tracing": _ON,
        "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": "false",
        "xla_tpu_use_tc_device_shape_on_sc": _ON,
        "xla_sc_enable_instruction_fusion": "false",
        "xla_sc_disable_megacore_partitioning": _ON,
        "xla_tpu_sparse_core_reduce_scatter_latency_multiplier": "3",
        "xla_tpu_sparse_core_all_reduce_latency_multiplier": "2",
    },
    # Gathers too, under JAX 0.12. From the same library, without xla_sc_disjoint_spmem and the name of a
    # chip's configuration. Compiled here, not tried on a TPU.
    "sparsecore": {
        "xla_tpu_enable_sparse_core_collective_offload_all_gather": _ON,
        "xla_tpu_enable_all_gather_offload_tracing": _ON,
        "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "false",
    },
    # Gradients that slices sum over the datacenter network overlap with the backward pass.
    "slices": {
        "xla_tpu_enable_data_parallel_all_reduce_opt": _ON,
        "xla_tpu_data_parallel_opt_different_sized_ops": _ON,
    },
    # Tensors on their way to and from the host's memory overlap with the layers beside them.
    "offload": {
        "xla_tpu_enable_all_experimental_scheduler_features": _ON,
        "xla_tpu_enable_scheduler_memory_pressure_tracking": _ON,
        "xla_tpu_host_transfer_overlap_limit": "24",
        "xla_max_concurrent_host_send_recv": "100",
        "xla_tpu_scheduler_percent_shared_memory_limit": "100",
    },
}


def problem(words: Sequence[str]) -> str:
    """Return the rule that compute.flags breaks, or an empty string."""
    if list(words) in (["auto"], ["none"]) or (words and set(words) <= set(GROUPS)):
        return ""
    return f"must be auto, none, or several of {', '.join(GROUPS)}"


def gathers_in_turn() -> bool:
    """Return True where SparseCores gather: they take a gather along a single axis of the torus only."""
    import jax

    return bool(jax.__version_info__ >= (0, 11))


def groups(compute: ComputeConfig, slices: int = 1) -> list[str]:
    """Return the names of a TPU step's option groups."""
    if list(compute.flags) != ["auto"]:
        return [name for name in GROUPS if name in compute.flags]
    chosen = ["vmem", "layouts", "reductions", "sparsecore" if gathers_in_turn() else "gathers"]
    if slices > 1:
        chosen.append("slices")
    if any(word.startswith("offload:") for word in compute.remat):
        chosen.append("offload")
    return chosen


def options(compute: ComputeConfig, platform: str, slices: int = 1) -> Options | None:
    """Return the argument `compiler_options` of `compile`; None for the compiler's defaults.

    Args:
        compute: settings of the run.
        platform: such as `tpu`.
        slices: their number.
    """
    if platform == "tpu":
        chosen: Options = {}
        for name in groups(compute, slices):
            chosen |= GROUPS[name]
        return chosen
    if platform == "cpu" and compute.quick_compile:
        import jax

        quick: Options = {"xla_backend_optimization_level": 0}
        if jax.__version_info__ < (0, 11):  # Python 3.11's lock has 0.10.2; 0.12 refuses the option
            quick["xla_cpu_use_fusion_emitters"] = False
        return quick
    return None
