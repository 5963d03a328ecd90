"""Divisibility rules of a step, for the devices of a run or the chips of a slice."""

from workload.errors import Problem
from workload.model import kernels
from workload.modules.config import ModuleConfig
from workload.train.config import Config


def problems(
    config: Config, devices: int, platform: str, devices_name: str, device_name: str
) -> list[Problem]:
    """Return violations: a batch that doesn't divide over the devices, an unsupported kernel.

    Args:
        config: the run's.
        devices: their number.
        platform: such as `tpu`.
        devices_name: for messages, `the chips`.
        device_name: for messages, `chip`.
    """
    violations = []
    batch, compute = config.train.batch_size, config.compute
    parts = devices * config.train.accumulate
    if batch % parts:
        rule = f"must be a multiple of {devices_name}, {devices}"
        if config.train.accumulate > 1:
            rule += f", times train.accumulate, {config.train.accumulate}"
        fix = f"--set train.batch_size={-(-batch // parts) * parts}"
        violations.append(Problem("train.batch_size", str(batch), rule, fix))
    elif compute.examples_at_once and batch // parts % compute.examples_at_once:
        rule = f"must divide the {batch // parts} examples of a {device_name} per part"
        violations.append(
            Problem("compute.examples_at_once", str(compute.examples_at_once), rule, "1, or 0 for all")
        )
    if isinstance(config.model, ModuleConfig):
        return violations
    if unfit := kernels.problem(compute.attention, platform, config.data.sequence_length):
        violations.append(Problem("compute.attention", compute.attention, unfit, "auto"))
    return violations
