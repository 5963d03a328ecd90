"""Ids of resources at Google and of a cluster's objects, as an import takes them, from type and inputs.

The forms are those of the "Import" sections of the provider's documentation, by type; where an import wants
another form than the state keeps (members of policies), the provider hands the state's one back.
"""

from collections.abc import Mapping
from typing import Any

from infra.engine.registry import layers
from infra.google.ids import FORMS


def forms() -> Mapping[str, str]:
    """Return the id formats of all types, those that layers declare included."""
    return {**FORMS, **{kind: form for layer in layers() for kind, form in layer.ids.items()}}


def google_id(kind: str, inputs: Mapping[str, Any], project: str) -> str | None:
    """Return the id of a resource once it is made; None where it can't be derived.

    `project` is the provider's, for resources that name none.
    """
    if kind.startswith("kubernetes:"):  # https://www.pulumi.com/registry/packages/kubernetes/, "Import"
        meta = inputs.get("metadata", {})
        return "/".join(filter(None, (meta.get("namespace"), meta.get("name")))) or None
    try:
        id_ = forms()[kind].format_map({"project": project, **inputs})
    except KeyError:
        return None
    condition = inputs.get("condition")  # of a member of a policy; its title tells bindings of a role apart
    return f"{id_} {condition['title']}" if condition else id_
