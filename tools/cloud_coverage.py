"""Google's methods that are emulated, as a table.

`python -m tools.cloud_coverage` prints the table of docs/cloud.md.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from rehearsal.cloud.__main__ import NoHosts
from rehearsal.cloud.cloud import Cloud
from rehearsal.cloud.config import CloudConfig
from views.table import markdown


def table() -> str:
    """Return a Markdown table of API and methods, without the API's own name before each."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        config = CloudConfig("p", folder, folder / "control.sock", "owner@example.com", "token")
        covered = Cloud(config, NoHosts()).front_door.covered()
    rows = [
        (f"{api} ({len(methods)})", _joined(api, methods))
        for api, methods in sorted(covered.items())
        if methods
    ]
    return "\n".join(markdown(("API", "methods"), rows))


def _joined(api: str, methods: list[str]) -> str:
    """`networks: get, insert; zones: get`."""
    collections: dict[str, list[str]] = {}
    for method in methods:
        collection, _, verb = method.removeprefix(f"{api}.").rpartition(".")
        for parent in ("projects.", "locations."):
            collection = collection.removeprefix(parent)
        collections.setdefault(collection, []).append(verb)
    return "; ".join(f"{collection}: {', '.join(verbs)}" for collection, verbs in collections.items())


if __name__ == "__main__":
    print(table())
