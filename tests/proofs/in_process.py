"""Pulumi's engine in a few lines: a program's registrations, carried out by the stand-in in this process.

What a step is, by diffs, `ignoreChanges` and `replaceOnChanges`, is as in the CLI. Replacements are counted
and not carried out: what depends on a resource would have to go first.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from pulumi.runtime import mocks

from infra.layers.tpu import startup
from rehearsal.providers.gcp.provider import Provider
from rehearsal.providers.plugin.errors import StandInError
from rehearsal.providers.plugin.values import from_struct
from tests.infra import recording
from tests.infra.lab import Lab
from tests.infra.recording import EngineError, Recording, execute
from tests.infra.settings.mutants import Values, Where
from tests.proofs.changes import Case, Changes, Update

Key = tuple[str, str]
_GCP = "gcp:"


@dataclass
class Held:
    """A resource in the state."""

    id: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]


class Monitor(recording.Monitor):
    """The monitor, which keeps a registration for the mocks that answer it."""

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802 (gRPC's name)
        _CURRENT.request = request
        return super().RegisterResource(request)


_CURRENT = threading.local()


@dataclass
class Engine(Recording):
    """A run of a program: its steps as OPERATION TYPE NAME, and errors."""

    provider: Provider = field(default_factory=lambda: Provider(poll_s=0.01, window_s=0.02))
    state: dict[Key, Held] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    seen: set[Key] = field(default_factory=set)

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        """Carry out a registration."""
        request, key = _CURRENT.request, (args.typ, args.name)
        if args.typ == "pulumi:providers:gcp":
            self.provider.configure_from(from_struct(request.object))
        if not args.typ.startswith(_GCP) or args.resource_id:
            return super().new_resource(args)
        self.seen.add(key)
        try:
            held = self._registered(key, from_struct(request.object), request)
        except StandInError as error:
            raise EngineError(f"{args.typ} {args.name}: {error}") from error
        return held.id, held.outputs

    def _registered(self, key: Key, given: Mapping[str, Any], request: Any) -> Held:
        token, name = key
        held = self.state.get(key)
        checked = self.provider.check(token, given, held.inputs if held else {}, name, b"seed")
        if checked.failures:
            raise StandInError("; ".join(sentence for _, sentence in checked.failures))
        if held is None:
            self.steps.append(f"create {token} {name}")
            id_, outputs = self.provider.create(token, checked.inputs)
            self.state[key] = Held(id_, checked.inputs, outputs)
            return self.state[key]
        ignored = list(request.ignoreChanges)
        inputs = _kept(checked.inputs, held.inputs, ignored)
        change = self.provider.diff(token, held.outputs, inputs, ignored, held.inputs)
        paths = [d.path for d in change.differences]
        forced = [path for path in paths if _under(path, request.replaceOnChanges)]
        if change.replaces or forced:
            self.steps.append(f"replace {token} {name}")
        elif paths:
            self.steps.append(f"update {token} {name}")
            outputs = self.provider.update(
                token, held.id, held.outputs, inputs, ignored=ignored, before=held.inputs
            )
            self.state[key] = Held(held.id, inputs, outputs)
        else:
            held.inputs = inputs
        return self.state[key]

    def delete_rest(self) -> None:
        """Delete what the program has declared no longer, the last one first."""
        for key in reversed([key for key in self.state if key not in self.seen]):
            held = self.state[key]
            self.steps.append(f"delete {key[0]} {key[1]}")
            self.provider.delete(key[0], held.id, held.outputs)
            del self.state[key]

    def refresh(self) -> list[str]:
        """Read everything again; return what is gone."""
        gone = []
        for key, held in list(self.state.items()):
            outputs = self.provider.read(key[0], held.id, held.outputs)
            if outputs is None:
                gone.append(f"gone {key[0]} {key[1]}")
            else:
                held.outputs = outputs
        return gone


class InProcess(Changes):
    """Changes without the CLI, a hundred times as fast: a plan is what is done, but for replacements."""

    def _begin(self, needed: Sequence[str]) -> None:
        variables = {k: v for k, v in self.lab.environment.items() if k.startswith(("GOOGLE_", "TPU_"))}
        os.environ.update(variables)
        self._given, self._needed, self._stacks = self.values, needed, dict[str, dict[str, Any]]()
        self._state: dict[Key, Held] = {}
        published = (f"manifests/{self.values['tpu:bundle']}", f"blobs/{startup.script_sha256()}")
        bucket = self.values["storage:bucketName"]
        self._objects = frozenset(f"gs://{bucket}/bundles/{name}" for name in published)
        for name in needed:
            self._state = {}
            engine = carried_out(name, self.values, self._state, self._stacks, self._objects)
            self._stacks[name], self._provider = engine.exports, engine.provider

    def case(self, path: str, where: Where, value: Any) -> Case:
        """As always; after what wasn't carried out, or failed, another lab is as new."""
        case = super().case(path, where, value)
        if case.outcome.startswith("refused") or "replace" in case.outcome or self.left():
            self.lab.close()
            self.lab = Lab(Path(tempfile.mkdtemp(dir=self._folder)))
            self._begin(self._needed)
        return case

    def left(self) -> list[str]:
        """Return what an update after a refresh would do."""
        gone = Engine(False, {}, provider=self._provider, state=self._state).refresh()
        update = self._up()
        return [*gone, *sorted(update.done), *([] if update.fine else [update.output])]

    def _empty(self, update: Update) -> list[str]:
        return [] if any(step.startswith("replace") for step in update.done) else super()._empty(update)

    def _write(self, values: Values) -> None:
        self._given = values

    def _up(self) -> Update:
        try:
            engine = carried_out(self.layer, self._given, self._state, self._stacks, self._objects)
        except Exception as error:
            return Update(False, frozenset(), frozenset(), f"error: {error}")
        return Update(True, frozenset(engine.steps), frozenset(engine.steps), "")


def carried_out(
    layer: str,
    values: dict[str, Any],
    state: dict[Key, Held],
    stacks: Mapping[str, Mapping[str, Any]],
    objects: frozenset[str],
) -> Engine:
    """Run a layer's program on a state, which it changes; raises what the program or a resource raises."""
    engine = Engine(False, stacks, objects, state=state)
    with mock.patch.object(recording, "Monitor", Monitor):
        execute(layer, values, engine)
    engine.delete_rest()
    return engine


def _under(path: str, prefixes: Iterable[str]) -> bool:
    return any(path == prefix or path.startswith((f"{prefix}.", f"{prefix}[")) for prefix in prefixes)


def _kept(inputs: dict[str, Any], before: Mapping[str, Any], ignored: Iterable[str]) -> dict[str, Any]:
    """Return the inputs with ignored ones as they were."""
    result = dict(inputs)
    for path in ignored:
        first, _, rest = path.partition(".")
        if not rest:
            result.pop(first, None)
            if first in before:
                result[first] = before[first]
        elif isinstance(result.get(first), dict) and isinstance(before.get(first), Mapping):
            result[first] = _kept(result[first], before[first], [rest])
    return result
