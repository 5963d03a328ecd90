"""Translation between a resource's properties and Google's JSON, by a type's table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rehearsal.providers.gcp.field import Field, Kind, Send
from rehearsal.providers.gcp.settings import Settings
from rehearsal.providers.gcp.table import Table
from rehearsal.providers.plugin.values import UNKNOWN, has_unknown, is_empty

OMITTED = object()  # what a field's `encode` returns for a value that isn't sent
LOCATIONS = ("project", "region", "zone")


def plan(
    table: Table, inputs: Mapping[str, Any], state: Mapping[str, Any], settings: Settings
) -> dict[str, Any]:
    """Every property's value as it will be: the program's, the provider's default, or the API's of before.

    `state`: outputs of before, empty on create. Labels: `labels` stays the
    program's, `effectiveLabels` is what will be sent, with labels that somebody else put there.
    """
    planned: dict[str, Any] = {}
    for f in table.inputs:
        value = inputs.get(f.name)
        if value is None and f.name in LOCATIONS:
            value = settings.location(f.name) or None
        planned[f.name] = _merged(f, value, state.get(f.name))
    if labels := next((f for f in table.inputs if f.kind is Kind.LABELS), None):
        own = settings.effective_labels(_known_map(planned.get(labels.name)))
        before = state.get("pulumiLabels") or {}
        foreign = {k: v for k, v in (state.get("effectiveLabels") or {}).items() if k not in before}
        unknown = planned.get(labels.name) is UNKNOWN
        planned["pulumiLabels"] = UNKNOWN if unknown else own
        planned["effectiveLabels"] = UNKNOWN if unknown else {**foreign, **own}
    return planned


def _merged(f: Field, wanted: Any, current: Any) -> Any:
    """Return a value with Google's where the program has none and Google may set it; Google's spelling where
    it means the same.
    """
    if wanted is None:
        unchanged = f.computed or (f.same is not None and current is not None and f.same(None, current))
        return current if unchanged else None
    if f.place and f.same is not None and current is not None and f.same(wanted, current):
        return current
    if f.kind is Kind.BLOCK and isinstance(wanted, Mapping) and isinstance(current, Mapping):
        return {**wanted, **dict(_carried(f, wanted, current))}
    if f.kind is Kind.BLOCKS and isinstance(wanted, list) and len(current or ()) == len(wanted):
        nested = zip(wanted, current, strict=True)
        return [item if item is UNKNOWN else {**item, **dict(_carried(f, item, old))} for item, old in nested]
    return wanted


def _carried(f: Field, wanted: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for n in f.fields:
        value = _merged(n, wanted.get(n.name), current.get(n.name))
        if value is not None and not (n.name not in wanted and is_empty(value)):
            yield n.name, value


def parameters(planned: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of `{…}` in paths; of locations given as links only the last part counts."""
    words = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in planned.items()
        if isinstance(value, str | int)
    }
    for key in ("region", "zone", "router", "sourceDisk"):
        if key in words:
            words[key] = words[key].rsplit("/", 1)[-1]
    return words


def body(
    fields: Iterable[Field],
    planned: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    update: bool = False,
    whole: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a request's JSON from `planned` values; `given` are the program's own, for Send.GIVEN.

    `whole`: the resource's values where `planned` are a block's.
    """
    result: dict[str, Any] = {}
    for f in fields:
        rule = f.send_update if update and f.send_update is not None else f.send
        value = planned.get("effectiveLabels" if f.kind is Kind.LABELS else f.name)
        if f.place is None or not _is_sent(f, value, given.get(f.name) is not None, rule):
            continue
        encoded = encode(f, value, whole or planned)
        if encoded is not OMITTED:
            _put(result, f.place, encoded)
    return result


def encode(f: Field, value: Any, planned: Mapping[str, Any]) -> Any:
    """Return a value in Google's form; `planned`: the resource's values."""
    if value is not None:
        if f.kind is Kind.BLOCK:
            value = body(f.fields, value, value, whole=planned)
        elif f.kind in (Kind.BLOCKS, Kind.BLOCK_SET):
            value = [body(f.fields, item, item, whole=planned) for item in value]
    elif f.encode is None:
        value = f.kind.zero
    if f.encode:
        value = f.encode(value, planned)
    if f.text and value is not None:
        value = str(value)
    if f.single:
        value = value[0] if value else None
    return [value] if f.listed and value is not None else value


def outputs(table: Table, rest: Mapping[str, Any], prior: Mapping[str, Any], id_: str) -> dict[str, Any]:
    """Return a resource's outputs from Google's JSON; missing ones are taken from `prior`."""
    result: dict[str, Any] = {"id": id_}
    for f in table.fields:
        if f.kind is Kind.LABELS:
            result |= _labels(f, rest, prior)
        elif f.place is None:
            value = prior.get(f.name)
            default = "DELETE" if f.name == "deletionPolicy" and not f.output else f.kind.zero
            result[f.name] = default if value is None else value
        else:
            result[f.name] = decode(f, _get(rest, f.place))
    return result


def decode(f: Field, raw: Any) -> Any:
    """Return a value in Pulumi's form; an absent value becomes the kind's zero."""
    if f.decode is not None:
        raw = f.decode(raw)
    if raw is None:
        return f.kind.zero
    if f.listed and isinstance(raw, list):
        raw = raw[0] if raw else None
    if f.single and isinstance(raw, Mapping):
        raw = [raw] if raw else []
    match f.kind:
        case Kind.INT:
            return int(raw)
        case Kind.STRING:
            return str(raw)
        case Kind.BLOCK:
            return _decoded(f, raw) if raw or f.decode else None
        case Kind.BLOCKS | Kind.BLOCK_SET:
            return [_decoded(f, item) for item in raw]
        case _:
            return raw


def _decoded(f: Field, raw: Any) -> dict[str, Any]:
    return {n.name: decode(n, _get(raw, n.place or n.name)) for n in f.fields}


def preview(table: Table, planned: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs known before any request; the API's own are unknown on create."""
    result: dict[str, Any] = {
        key: planned[key] for key in ("pulumiLabels", "effectiveLabels") if key in planned
    }
    for f in table.fields:
        value = None if f.output else planned.get(f.name)
        if value is not None:
            result[f.name] = value
        elif f.output or f.computed:
            result[f.name] = state.get(f.name, UNKNOWN)
        else:
            result[f.name] = f.kind.zero
    if "id" in state:
        result["id"] = state["id"]
    return result


def _labels(f: Field, rest: Mapping[str, Any], prior: Mapping[str, Any]) -> dict[str, Any]:
    """Return the three label outputs: the program's own, with the provider's, and all existing ones."""
    current = _get(rest, f.place or f.name) or {}
    own = prior.get(f.name)
    managed = prior.get("pulumiLabels") or {}
    return {
        f.name: {k: current[k] for k in own if k in current} if own else own,
        "pulumiLabels": {k: current[k] for k in managed if k in current},
        "effectiveLabels": dict(current),
    }


def _is_sent(f: Field, value: Any, given: bool, rule: Send) -> bool:
    if rule is Send.NEVER:
        return False
    if rule is Send.OWN:
        return given
    if rule is Send.ALWAYS or (rule is Send.GIVEN and given):
        return True
    if f.kind is Kind.BLOCK:
        return value is not None
    return not is_empty(value) or has_unknown(value)


def _known_map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _get(rest: Any, place: str) -> Any:
    for part in place.split("."):
        if not isinstance(rest, Mapping):
            return None
        rest = rest.get(part)
    return rest


def _put(target: dict[str, Any], place: str, value: Any) -> None:
    *parents, last = place.split(".")
    for part in parents:
        target = target.setdefault(part, {})
    target[last] = value
