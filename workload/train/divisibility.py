"""What must divide for a step to run, on the devices of a run or on the chips of a slice."""

from workload.errors import Problem
from workload.model import kernels
from workload.train.config import Config


def problems(config: Config, devices: int, platform: str, all_of: str, one: str) -> list[Problem]:
    """A batch or pieces of it that don't divide over the devices, a kernel that the platform hasn't.

    Args:
        config: the run's.
        devices: how many there are.
        platform: `tpu`, `gpu` or `cpu`.
        all_of: what they are to people, `the chips`.
        one: what one of them is, `chip`.
    """
    found = []
    batch, compute = config.train.batch_size, config.compute
    parts = devices * config.train.accumulate
    if batch % parts:
        rule = f"must be a multiple of {all_of}, {devices}"
        if config.train.accumulate > 1:
            rule += f", times train.accumulate, {config.train.accumulate}"
        fix = f"--set train.batch_size={-(-batch // parts) * parts}"
        found.append(Problem("train.batch_size", str(batch), rule, fix))
    elif compute.examples_at_once and batch // parts % compute.examples_at_once:
        rule = f"must divide the {batch // parts} examples that a {one} has at a time"
        found.append(
            Problem("compute.examples_at_once", str(compute.examples_at_once), rule, "1, or 0 for all")
        )
    if unfit := kernels.problem(compute.attention, platform, config.data.sequence_length, compute.dtype):
        found.append(Problem("compute.attention", compute.attention, unfit, "auto"))
    return found
