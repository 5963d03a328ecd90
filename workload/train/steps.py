"""Choice of a run's step: the decoder's, or that of the user's module."""

from jax.sharding import Mesh

from workload.modules.config import ModuleConfig
from workload.train.config import Config
from workload.train.update import TrainStep


def make_step(config: Config, mesh: Mesh, platform: str, slices: int = 1) -> TrainStep:
    """Create the step of the config's model.

    Raises:
        ConfigError: the module can't be trained.
    """
    if isinstance(config.model, ModuleConfig):
        from workload.train.module_step import ModuleStep  # flax takes a second to import

        return ModuleStep(config, mesh, platform, slices)
    if config.lora.rank:
        from workload.train.lora_step import LoraStep

        return LoraStep(config, mesh, platform, slices)
    from workload.train.step import Step

    return Step(config, mesh, platform, slices)
