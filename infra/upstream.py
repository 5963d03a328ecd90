"""Reading what another layer made: the only way from one stack to another.

It asks the engine for the outputs by the call that `pulumi.StackReference` is made of. Unlike a
StackReference it can be answered "there is no such stack yet", so that a plan of all
layers can be shown before any of them is up.
"""

from functools import lru_cache
from typing import Any, TypeVar

import pulumi

from infra import names
from infra.errors import UpstreamError

T = TypeVar("T")

_OUTPUTS_OF_A_STACK = "pulumi:pulumi:readStackOutputs"
_NO_SUCH_STACK = "unknown stack"


def read(layer: str, output: str, planned: T, key: str | None = None) -> T:
    """An output of `layer` in this environment, or its entry `key`.

    While the layer isn't up (or is up without it), a preview gets `planned`, the value that it will
    have, and says so; an update raises UpstreamError with the command to run first.
    """
    outputs = _outputs(layer, pulumi.get_organization(), pulumi.get_stack())
    value = (outputs or {}).get(output)
    what = output
    if key is not None:
        value = value.get(key) if isinstance(value, dict) else None
        what = f"{output}[{key}]"
    if isinstance(value, type(planned)) and value:
        return value
    if pulumi.runtime.is_dry_run():
        state = "not up yet" if not outputs else f"up without {what}"
        pulumi.log.info(f"{layer} is {state}: this preview takes {planned} for its {what}")
        return planned
    command = names.up_command(layer, pulumi.get_stack())
    state = "is not up" if not outputs else f"has no output {what} (is it up with the present settings?)"
    raise UpstreamError(f"{layer} {state}; run this first: {command}")


def is_up(layer: str) -> bool:
    """Whether the layer has outputs in this environment."""
    return bool(_outputs(layer, pulumi.get_organization(), pulumi.get_stack()))


@lru_cache
def _outputs(layer: str, organization: str, stack: str) -> dict[str, Any] | None:
    """All outputs of a layer; None where the stack doesn't exist. Other failures are not "doesn't exist"."""
    try:
        result = pulumi.runtime.invoke(_OUTPUTS_OF_A_STACK, {"name": f"{organization}/{layer}/{stack}"})
    except Exception as error:
        if _NO_SUCH_STACK in str(error):
            return None
        raise UpstreamError(f"the outputs of {layer} can't be read: {error}") from error
    outputs: dict[str, Any] = result.value["outputs"]
    return outputs
