"""The generated parts of docs/standin.md: what the stand-in knows. `make docs` writes them."""

from __future__ import annotations

from rehearsal.providers.gcp import sdk
from rehearsal.providers.gcp.invokes import INVOKES
from rehearsal.providers.gcp.types import TYPES
from views.table import markdown


def types() -> str:
    """Return a table of the resource types: their paths at Google and the properties a program can't set."""
    rows = []
    for resource in sorted(TYPES.values(), key=lambda r: r.table.token):
        table = resource.table
        product, name = table.token.split(":")[1].split("/")[0], table.token.rsplit(":", 1)[1]
        path = table.service.base.removeprefix("https://") + table.item
        refused = sdk.resource_type(table.token).inputs.keys() - {f.name for f in table.inputs}
        rows.append((f"{product}.{name}", f"`{path}`", ", ".join(f"`{item}`" for item in sorted(refused))))
    return "\n".join(markdown(("type", "at Google", "refused properties"), rows))


def functions() -> str:
    """Return the look-ups, one a line."""
    return "\n".join(
        f"- `{token.split(':')[1].split('/')[0]}.{token.rsplit(':', 1)[1]}`" for token in INVOKES
    )
