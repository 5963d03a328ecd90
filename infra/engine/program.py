"""Pulumi's entry point: declare the layer that is named like the project."""

import pulumi

from infra.core import upstream
from infra.core.environment import layers_on
from infra.core.guard import MEMBERS, Living
from infra.core.layer import Layer, off, up_command
from infra.core.outputs import Outputs
from infra.engine import prices, updates
from infra.engine.before import relations
from infra.engine.enforce import enforce
from infra.engine.settings import from_pulumi
from infra.errors import InfraError, UpstreamError
from infra.layers.storage.outputs import StorageOutputs
from infra.settings.schema import Settings


def run() -> None:
    """Check all settings, then declare one layer and export its outputs.

    What is wrong ends the program as one message: `pulumi.RunError` is shown without a traceback.
    """
    made: list[pulumi.Resource] = []
    pulumi.runtime.register_stack_transformation(lambda args: made.append(args.resource))
    try:
        checked = from_pulumi(pulumi.get_stack(), relations())
        prices.within_budget(checked)
        layer = _of_the_project(checked)
        enforce(checked, layer.name)
        updates.refuse_interrupted(pulumi.get_stack(), layer.name)
        _enabled(checked, layer)
        providers = {name: make(checked, layer.name) for name, make in layer.providers.items()}
        outputs = layer.program(checked, providers)
        if not isinstance(outputs, layer.outputs):
            kind = type(outputs).__name__
            raise InfraError(
                f"the program of {layer.name} gives {kind} and declares {layer.outputs.__name__}"
            )
    except InfraError as error:
        raise pulumi.RunError(str(error)) from error
    _guard(checked, layer, outputs, made)
    for name, value in outputs.exports().items():
        pulumi.export(name, value)


def _of_the_project(checked: Settings) -> Layer:
    name = pulumi.get_project()
    layer = next((layer for layer in layers_on(checked) if layer.name == name), None)
    if layer is None:
        raise InfraError(off(name, checked.environment))
    return layer


def _enabled(checked: Settings, layer: Layer) -> None:
    """Refuse an update that calls a service which storage would enable by the settings as they are now."""
    enabled = upstream.known(StorageOutputs, "services") if "storage" in layer.needs else None
    if enabled is None or not (missing := sorted({*layer.services(checked)} - {*enabled})):
        return
    command = up_command("storage", checked.environment)
    problem = f"{', '.join(missing)}: not enabled in {checked.project}; run this first: {command}"
    if not pulumi.runtime.is_dry_run():
        raise UpstreamError(problem)
    pulumi.log.info(problem)


def _guard(checked: Settings, layer: Layer, outputs: Outputs, made: list[pulumi.Resource]) -> None:
    """Guard against destroying a layer, or layers that it reads, while fleet members or jobs depend on it."""
    everything = [*made]
    for holding in layers_on(checked):
        if not holding.holds or layer.name not in (holding.name, *holding.needs):
            continue
        labels: dict[str, pulumi.Input[str]] = dict(holding.held_by(checked))
        if holding.holds == MEMBERS and "stackId" in (exports := outputs.exports()):
            labels["stack"] = exports["stackId"]
        Living(holding.holds, checked.project, checked.environment, labels, everything)
