"""Write declared.json from the tree that runs: `python -m tests.upgrade.record`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.core.guard import FIXED, GROWING
from tests.infra.recording import BASE, run

SETTINGS: dict[str, Any] = {
    **BASE,
    "gke:tpuPools": [{"name": "train", "acceleratorType": "v6e-16", "zone": "us-east5-b"}],
}
LAYERS = ("storage", "network", "data", "tpu", "gke")
Declared = Mapping[str, Mapping[str, str]]
# They hold what a setting was, are nothing at Google, and let themselves be deleted.
_OF_THE_STACK_ALONE = (f"{FIXED}-", f"{GROWING}-")
_IMMUTABLE = (
    "accountId", "bucket", "location", "member", "name", "network", "project", "region", "role", "service",
    "zone",
)  # fmt: skip


def declared(layer: str, settings: Mapping[str, Any]) -> Declared:
    """Return what a layer declares: the last parts of each URN → inputs that never change in place."""
    return {
        f"{item.options.get('parent', '').partition('::')[2]} > {item.type}::{item.name}": {
            key: item.inputs[key] for key in _IMMUTABLE if isinstance(item.inputs.get(key), str)
        }
        for item in run(layer, settings).resources
        if not item.name.startswith(_OF_THE_STACK_ALONE)
    }


def main() -> None:
    """Write the file."""
    content = {"settings": SETTINGS, "declared": {layer: declared(layer, SETTINGS) for layer in LAYERS}}
    path = Path(__file__).with_name("declared.json")
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()
