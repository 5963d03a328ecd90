"""The size of a slice as settings say it: by the name of its type, by the grid of its chips, or by both."""

from collections.abc import Iterator

from infra.catalog import CATALOG, SliceType, chips_of
from infra.errors import Problem


def kind_of(accelerator_type: str | None, topology: str | None) -> SliceType | None:
    """Return the slice type; None where neither argument names one."""
    return CATALOG.by_name(accelerator_type or "") or CATALOG.by_topology(topology or "")


def problems(
    path: str, accelerator_type: str | None, topology: str | None, *, type_known: bool
) -> Iterator[Problem]:
    """Yield problems of a size; `type_known`: the type is in the catalog, or not given."""
    kind = CATALOG.by_name(accelerator_type) if accelerator_type else None
    if kind is None and topology is None and type_known:
        yield Problem(
            path,
            "neither acceleratorType nor topology",
            "a slice has a size",
            "add acceleratorType: v6e-16 (or topology: 4x4)",
        )
    if topology is None:
        return
    same = CATALOG.by_topology(topology)
    chips = chips_of(topology)
    if kind is not None and topology != kind.topology:
        what = f"{topology} is {chips} chips" + (f", a {same.name}" if same else "")
        hint = f", or acceleratorType: {same.name}" if same else ""
        yield Problem(
            f"{path}.topology",
            f'"{topology}"',
            f"{kind.name} is {kind.topology} ({kind.chips} chips); {what}",
            f"write topology: {kind.topology}{hint}",
        )
    elif same is None:
        known = ", ".join(known.topology for known in CATALOG.types)
        turned = CATALOG.by_topology("x".join(reversed(topology.split("x"))))
        yield Problem(
            f"{path}.topology",
            f'"{topology}"',
            f"v6e comes as {known} (a pod has {CATALOG.pod_chips} chips)",
            f"write topology: {turned.topology}" if turned else "write one of these",
        )
