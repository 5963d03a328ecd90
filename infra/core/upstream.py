"""Reading the outputs of another layer: the only way from one stack to another.

It requests the outputs from the engine by the call that `pulumi.StackReference` is made of. Unlike a
StackReference it accepts that a stack doesn't exist yet, so that a plan of all layers can be shown
before any of them is up.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import pulumi

from infra.core.environment import layers_on
from infra.core.layer import off, up_command
from infra.core.outputs import Declared, Outputs, read_by
from infra.errors import InfraError, UpstreamError
from infra.settings.schema import Settings

T = TypeVar("T", bound=Outputs)

_OUTPUTS_OF_A_STACK = "pulumi:pulumi:readStackOutputs"
_NO_SUCH_STACK = "unknown stack"


def read(kind: type[T], settings: Settings) -> T:
    """Return the outputs of a layer in this environment; each is looked up at its first use.

    A value is secret if the other stack marks it so. While the layer isn't up (or is up without the
    output), a preview gets the planned value, or an unknown one, and logs that.

    Raises:
        UpstreamError: the layer is off; or, in an update, it isn't up: with the command to run first.
    """
    if kind.layer not in [layer.name for layer in layers_on(settings)]:
        raise UpstreamError(off(kind.layer, settings.environment))
    planned = kind.planned(settings)
    if unknown := sorted(planned.keys() - vars(kind).keys()):
        raise InfraError(f"{kind.layer} plans {', '.join(unknown)}, and declares no such output")
    outputs: T = read_by(kind, lambda field: _value(kind.layer, field, planned.get(field.name)))
    return outputs


def known(kind: type[Outputs], field: str) -> Any:
    """Return an output's present value in the other stack's state; None where it has none."""
    declared: Declared = getattr(kind, field)
    return _read(kind.layer).outputs.get(declared.key)


@dataclass(frozen=True)
class _Stack:
    outputs: Mapping[str, Any]
    secret: frozenset[str]


class _PerKey(Mapping[str, "pulumi.Output[Any]"]):
    """An output that is a mapping: a key is looked up at its first use."""

    def __init__(self, layer: str, field: Declared, values: Mapping[str, Any], planned: Mapping[str, Any]):
        self._layer, self._field, self._values, self._planned = layer, field, values, planned

    def __getitem__(self, key: str) -> "pulumi.Output[Any]":
        name = f"{self._field.key}[{key}]"
        return _output(self._layer, self._field, name, self._values.get(key), self._planned.get(key))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._values, *self._planned)))

    def __len__(self) -> int:
        return len(list(iter(self)))


def _value(layer: str, field: Declared, planned: Any) -> Any:
    value = _read(layer).outputs.get(field.key)
    if field.per:
        return _PerKey(layer, field, value if isinstance(value, dict) else {}, planned or {})
    if value is None and not field.required:
        return None
    return _output(layer, field, field.key, value, planned)


def _output(layer: str, field: Declared, name: str, value: Any, planned: Any) -> "pulumi.Output[Any]":
    stack = _read(layer)
    if value is not None:
        result: pulumi.Output[Any] = pulumi.Output.from_input(value)
        return pulumi.Output.secret(result) if field.key in stack.secret else result
    if pulumi.runtime.is_dry_run():
        state = "not up yet" if not stack.outputs else f"up without {name}"
        known = f"takes {planned} for" if planned is not None else "doesn't know"
        pulumi.log.info(f"{layer} is {state}: this preview {known} its {name}")
        return pulumi.Output.from_input(pulumi.UNKNOWN if planned is None else planned)
    command = up_command(layer, pulumi.get_stack())
    missing = f"has no output {name} (is it up with the present settings?)"
    raise UpstreamError(f"{layer} {missing if stack.outputs else 'is not up'}; run this first: {command}")


def _read(layer: str) -> _Stack:
    return _stack(layer, pulumi.get_organization(), pulumi.get_stack())


@lru_cache
def _stack(layer: str, organization: str, stack: str) -> _Stack:
    """Return a stack's outputs, none where it doesn't exist. Raises UpstreamError for other failures."""
    try:
        result = pulumi.runtime.invoke(_OUTPUTS_OF_A_STACK, {"name": f"{organization}/{layer}/{stack}"})
    except Exception as error:
        if _NO_SUCH_STACK in str(error):
            return _Stack({}, frozenset())
        raise UpstreamError(f"the outputs of {layer} can't be read: {error}") from error
    return _Stack(result.value["outputs"], frozenset(result.value.get("secretOutputNames") or ()))
