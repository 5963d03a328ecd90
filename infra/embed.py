"""Settings, layers and slices for a Pulumi program of your own (examples/pulumi-program)."""

from __future__ import annotations

from typing import TypeVar

import pulumi

from infra.core.outputs import Outputs
from infra.engine import registry
from infra.engine.settings import from_pulumi
from infra.errors import InfraError
from infra.layers.data.outputs import DataOutputs
from infra.layers.network.outputs import NetworkOutputs
from infra.layers.storage.outputs import StorageOutputs
from infra.layers.tpu.metadata import metadata
from infra.layers.tpu.program import named_slices
from infra.layers.tpu.request import SliceResources
from infra.layers.tpu.slice import TpuSlice
from infra.settings.schema import Settings
from infra.slices.nodes import Node, nodes

__all__ = [
    "DataOutputs", "NetworkOutputs", "Node", "Settings", "SliceResources", "StorageOutputs", "TpuSlice",
    "layer", "metadata", "named_slices", "nodes", "settings",
]  # fmt: skip

T = TypeVar("T", bound=Outputs)


def settings() -> Settings:
    """Return the settings in the stack's file. Raises RunError with every problem."""
    try:
        return from_pulumi(pulumi.get_stack())
    except InfraError as error:
        raise pulumi.RunError(str(error)) from error


def layer(outputs: type[T], settings: Settings, provider: pulumi.ProviderResource) -> T:
    """Declare a layer's resources in this stack; return its outputs.

    Args:
        outputs: class of its outputs, such as NetworkOutputs.
        settings: of the environment.
        provider: Google Cloud's, which makes them.

    Raises:
        RunError: the layer can't be declared, for instance because a stack that it reads isn't up.
    """
    declared = registry.named(outputs.layer)
    try:
        result = declared.program(settings, {"gcp": provider})
    except InfraError as error:
        raise pulumi.RunError(str(error)) from error
    assert isinstance(result, outputs), "a layer returns the outputs that it declares"
    return result
