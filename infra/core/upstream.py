"""Reading what another layer made: the only way from one stack to another.

It asks the engine for the outputs by the call that `pulumi.StackReference` is made of. Unlike a
StackReference it can be answered "there is no such stack yet", so that a plan of all
layers can be shown before any of them is up.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import pulumi

from infra.core import layer as core_layer
from infra.core.layer import Layer, up_command
from infra.core.outputs import Declared, Outputs, read_by
from infra.engine import layers
from infra.errors import InfraError, UpstreamError
from infra.settings.schema import Settings

T = TypeVar("T", bound=Outputs)

_OUTPUTS_OF_A_STACK = "pulumi:pulumi:readStackOutputs"
_NO_SUCH_STACK = "unknown stack"


def read(kind: type[T], settings: Settings) -> T:
    """The outputs of a layer in this environment, by their class.

    Each is looked up when it is used: secret if the other stack says so. While the layer isn't up (or is up
    without it), a preview gets the value that the settings foretell, or an unknown one, and says so; an
    update raises UpstreamError with the command to run first.
    """
    layer = _giving(kind)
    if layer not in layers.on(settings):
        raise UpstreamError(core_layer.off(layer.name, settings.environment))
    planned = layer.planned(settings)
    if unknown := sorted(planned.keys() - vars(kind).keys()):
        raise InfraError(f"{layer.name} plans {', '.join(unknown)}, and declares no such output")
    found: T = read_by(kind, lambda one: _value(layer, one, planned.get(one.name)))
    return found


def known(kind: type[Outputs], field: str) -> Any:
    """An output as it stands in the other stack's state, for who must know it now; None without one."""
    one: Declared = getattr(kind, field)
    return _read(_giving(kind)).outputs.get(one.key)


@dataclass(frozen=True)
class _Stack:
    outputs: Mapping[str, Any]
    secret: frozenset[str]


class _PerKey(Mapping[str, "pulumi.Output[Any]"]):
    """An output that is a mapping: a key is looked up when it is used."""

    def __init__(self, layer: Layer, one: Declared, there: Mapping[str, Any], planned: Mapping[str, Any]):
        self._layer, self._one, self._there, self._planned = layer, one, there, planned

    def __getitem__(self, key: str) -> "pulumi.Output[Any]":
        what = f"{self._one.key}[{key}]"
        return _output(self._layer, self._one, what, self._there.get(key), self._planned.get(key))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._there, *self._planned)))

    def __len__(self) -> int:
        return len(list(iter(self)))


def _giving(kind: type[Outputs]) -> Layer:
    return next(layer for layer in layers.layers() if layer.outputs is kind)


def _value(layer: Layer, one: Declared, planned: Any) -> Any:
    value = _read(layer).outputs.get(one.key)
    if one.per:
        return _PerKey(layer, one, value if isinstance(value, dict) else {}, planned or {})
    if value is None and not one.required:
        return None
    return _output(layer, one, one.key, value, planned)


def _output(layer: Layer, one: Declared, what: str, value: Any, planned: Any) -> "pulumi.Output[Any]":
    stack = _read(layer)
    if value is not None:
        made: pulumi.Output[Any] = pulumi.Output.from_input(value)
        return pulumi.Output.secret(made) if one.key in stack.secret else made
    if pulumi.runtime.is_dry_run():
        state = "not up yet" if not stack.outputs else f"up without {what}"
        known = f"takes {planned} for" if planned is not None else "doesn't know"
        pulumi.log.info(f"{layer.name} is {state}: this preview {known} its {what}")
        return pulumi.Output.from_input(pulumi.UNKNOWN if planned is None else planned)
    command = up_command(layer.name, pulumi.get_stack())
    lacking = f"has no output {what} (is it up with the present settings?)"
    raise UpstreamError(
        f"{layer.name} {lacking if stack.outputs else 'is not up'}; run this first: {command}"
    )


def _read(layer: Layer) -> _Stack:
    return _stack(layer.name, pulumi.get_organization(), pulumi.get_stack())


@lru_cache
def _stack(layer: str, organization: str, stack: str) -> _Stack:
    """What a layer's stack says; nothing where it doesn't exist. Other failures are not "doesn't exist"."""
    try:
        result = pulumi.runtime.invoke(_OUTPUTS_OF_A_STACK, {"name": f"{organization}/{layer}/{stack}"})
    except Exception as error:
        if _NO_SUCH_STACK in str(error):
            return _Stack({}, frozenset())
        raise UpstreamError(f"the outputs of {layer} can't be read: {error}") from error
    return _Stack(result.value["outputs"], frozenset(result.value.get("secretOutputNames") or ()))
