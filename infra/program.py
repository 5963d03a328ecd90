"""What Pulumi runs: the layer that is called like the project."""

from collections.abc import Callable, Mapping
from typing import Any

import pulumi
import pulumi_gcp as gcp

from infra import names, prices, provider, settings, stacks
from infra.data.program import program as data
from infra.errors import InfraError
from infra.guard import LivingMembers
from infra.network.program import program as network
from infra.settings import Settings
from infra.storage.program import program as storage
from infra.tpu.program import program as tpu

Layer = Callable[[Settings, gcp.Provider], Mapping[str, Any]]

LAYERS: Mapping[str, Layer] = {"storage": storage, "network": network, "data": data, "tpu": tpu}


def run() -> None:
    """Check all settings, then declare one layer and export its outputs.

    What is wrong ends the program as one message: `pulumi.RunError` is shown without a traceback.
    """
    layer = pulumi.get_project()
    made: list[pulumi.Resource] = []
    pulumi.runtime.register_stack_transformation(lambda args: made.append(args.resource))
    try:
        checked = settings.from_pulumi(pulumi.get_stack())
        prices.within_budget(checked)
        stacks.refuse_interrupted(pulumi.get_stack(), layer)
        outputs = LAYERS[layer](checked, provider.make(checked, layer))
    except InfraError as error:
        raise pulumi.RunError(str(error)) from error
    labels: dict[str, pulumi.Input[str]] = dict(names.labels(checked.environment, "tpu"))
    if layer == "tpu":
        labels["stack"] = outputs["stackId"]
    LivingMembers(checked.gcp.project, checked.environment, labels, [*made])
    for name, value in outputs.items():
        pulumi.export(name, value)
