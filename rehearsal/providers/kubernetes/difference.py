"""Differences of an update: the previous object, reduced to its declared fields, against the new one.

By provider.go (Diff, pruneLiveState, normalizeInputs, convertPatchToDiff) and diff.go (forceNew).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from rehearsal.providers.plugin.provider import Difference
from rehearsal.providers.plugin.values import has_unknown, is_empty

# The SDK's names of fields that are no names of Python's.
_DASHED = {
    name.replace("-", "_"): name
    for name in (
        "x-kubernetes-embedded-resource", "x-kubernetes-int-or-string", "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type", "x-kubernetes-map-type", "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
    )
}  # fmt: skip
_UNDERSCORED = {name: key for key, name in _DASHED.items()}

READ_ONLY = (
    "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation", "managedFields",
    "resourceVersion", "uid",
)  # fmt: skip


def _in_spec(names: str) -> tuple[str, ...]:
    return tuple(f".spec.{name}" for name in names.split())


# By group and kind: what can't be changed in place; Pod and PersistentVolume aren't here.
_REPLACED: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "PersistentVolumeClaim"): _in_spec("accessModes selector storageClassName volumeName"),
    ("", "ResourceQuota"): (".spec.scopes",),
    ("", "Secret"): (".type",),
    ("", "Service"): (".spec.clusterIP",),
    ("apps", "DaemonSet"): _in_spec("selector"),
    ("apps", "Deployment"): _in_spec("selector"),
    ("apps", "StatefulSet"): _in_spec(
        "podManagementPolicy revisionHistoryLimit selector serviceName volumeClaimTemplates"
    ),
    ("batch", "Job"): _in_spec("completions parallelism selector template"),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): (".roleRef",),
    ("rbac.authorization.k8s.io", "RoleBinding"): (".roleRef",),
    ("storage.k8s.io", "StorageClass"): (".parameters", ".provisioner"),
}

# Maps of quantities, which the API server writes in their shortest form.
_QUANTITIES = {
    "limits",
    "requests",
    "capacity",
    "hard",
    "overhead",
    "default",
    "defaultRequest",
    "min",
    "max",
}
_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(?:[eE]([+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)")
_POWERS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def group_of(version: str) -> str:
    """Return the group of an apiVersion; empty for the core's."""
    return version.rpartition("/")[0]


def is_built_in(version: str) -> bool:
    """Return True if the official provider has Go types for a version's kinds, and so normalizes them."""
    group = group_of(version)
    return "." not in group or group.endswith(".k8s.io")


def declared(value: Any) -> Any:
    """Return inputs with the API's names of fields."""
    return _renamed(value, _DASHED)


def shown(value: Any) -> Any:
    """Return outputs with the SDK's names of fields."""
    return _renamed(value, _UNDERSCORED)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {names.get(key, key): _renamed(item, names) for key, item in value.items()}
    return [_renamed(item, names) for item in value] if isinstance(value, list) else value


def normalized(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without the fields that the API server sets, drops, or moves."""
    result = dict(manifest)
    if isinstance(meta := result.get("metadata"), Mapping):
        result["metadata"] = {key: value for key, value in meta.items() if key not in READ_ONLY}
    if not is_built_in(str(result.get("apiVersion"))) or has_unknown(result):
        return result
    result = {key: _without_nulls(value) for key, value in result.items() if value is not None}
    if result.get("kind") == "CustomResourceDefinition":
        result.pop("status", None)
        if result.get("spec", {}).get("preserveUnknownFields") is False:
            del result["spec"]["preserveUnknownFields"]
    if result.get("kind") == "Secret" and (texts := result.pop("stringData", None)):
        coded = {key: base64.b64encode(str(text).encode()).decode() for key, text in texts.items()}
        result["data"] = {**(result.get("data") or {}), **coded}
    return result


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def pruned(live: Any, shape: Any) -> Any:
    """`live` without what `shape` doesn't have."""
    if isinstance(live, Mapping) and isinstance(shape, Mapping):
        return {key: pruned(value, shape[key]) for key, value in live.items() if key in shape}
    if isinstance(live, list) and isinstance(shape, list):
        return [pruned(value, part) for value, part in zip(live, shape, strict=False)]
    return live


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Return the differences. The data of a ConfigMap or Secret isn't changed in place."""
    replaced = [".metadata.name", ".metadata.namespace"]
    kind = str(new.get("kind"))
    if kind in ("ConfigMap", "Secret"):
        replaced += [".type", ".data"] if kind == "Secret" else [".binaryData", ".data"]
    replaced += _REPLACED.get((group_of(str(new.get("apiVersion"))), kind), ())
    changes = []
    for path, what in _compare((), old, new, is_built_in(str(new.get("apiVersion")))):
        text = "".join(_step(key) for key in path).removeprefix(".")
        place = "".join("[*]" if isinstance(key, int) else f".{key}" for key in path)
        replaces = any(place == path or place.startswith((f"{path}.", f"{path}[")) for path in replaced)
        changes.append(Difference(text, text, what, replaces))
    return changes


_MISSING = object()


def _compare(path: tuple[str | int, ...], old: Any, new: Any, built_in: bool) -> Iterator[tuple[Any, str]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(old.keys() | new.keys()):
            yield from _compare((*path, key), old.get(key, _MISSING), new.get(key, _MISSING), built_in)
    elif isinstance(old, list) and isinstance(new, list):
        for i in range(max(len(old), len(new))):
            before, now = (item[i] if i < len(item) else _MISSING for item in (old, new))
            yield from _compare((*path, i), before, now, built_in)
    elif new is _MISSING:
        yield path, "DELETE"
    elif old is _MISSING:
        if not (built_in and not has_unknown(new) and is_empty(new)):  # which the API server drops
            yield path, "ADD"
    elif not (old == new and isinstance(old, bool) == isinstance(new, bool)) and not (
        built_in and _QUANTITIES & {*map(str, path[:-1])} and _quantity(old) == _quantity(new)
    ):
        yield path, "UPDATE"


def _quantity(value: Any) -> Any:
    """Return a quantity's number;
    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
    """
    if not (match := _QUANTITY.fullmatch(str(value))):
        return value
    number, exponent, suffix = match.groups()
    if suffix and suffix.endswith("i"):
        return Decimal(number) * 1024 ** ("KMGTPE".index(suffix[0]) + 1)
    return Decimal(number).scaleb(int(exponent) if exponent else _POWERS[suffix or ""])


def _step(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    return f'["{key}"]' if re.search(r'[."\[\]]', key) else f".{key}"
