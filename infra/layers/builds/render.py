"""The build files of an environment, as the Cloud Build API describes a build.

https://cloud.google.com/build/docs/api/reference/rest/v1/projects.builds
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from infra.layers.builds import names
from infra.layers.builds.access import applied
from infra.layers.builds.settings import BuildsSettings
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings

Build = dict[str, Any]

PLANS = "plans"
"""Folder of the saved plans, in the checkout that all steps of a build share."""
STEP = "tools/build-step.sh"
_HEADERS = {
    "provision": "Plans the layers and applies the plans, layer by layer.",
    "destroy": "Takes the layers down, the last one first, unless something protected or living is there.",
}


def build(settings: Settings, kind: str) -> Build:
    """Return a build: `provision` or `destroy`."""
    environment, chosen = settings.environment, settings[BuildsSettings]
    layers = [layer.name for layer in applied(settings)]
    if kind == "provision":
        steps = [("plan", "plan", environment, *layers, "--save", PLANS)]
        again = ("--plan", PLANS, "--skip-preview", "--yes")
        steps += [(f"apply-{layer}", "infra", "up", environment, layer, *again) for layer in layers]
    else:
        steps = [("check", "infra", "down", environment, *layers, "--check")]
        down = ("--skip-preview", "--yes")
        steps += [
            (f"destroy-{layer}", "infra", "down", environment, layer, *down) for layer in reversed(layers)
        ]
    return {
        "steps": [
            {"id": name, "name": chosen.image, "entrypoint": "bash", "args": [STEP, *arguments]}
            for name, *arguments in steps
        ],
        "timeout": f"{chosen.timeout_minutes * 60}s",
        "serviceAccount": f"projects/{settings.project}/serviceAccounts/{names.email(settings)}",
        "options": {"logging": "CLOUD_LOGGING_ONLY", "env": _variables(settings)},
        "tags": ["tpu", environment, kind],
    }


def _variables(settings: Settings) -> list[str]:
    folder = f"{names.FOLDER}/{settings.environment}"
    return [
        f"PULUMI_BACKEND_URL=gs://{settings[StorageSettings].state_bucket_name}",
        "PULUMI_SKIP_UPDATE_CHECK=true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION=true",
        "PULUMI_DIY_BACKEND_GZIP=true",  # a state is written several times for each resource
        *(
            f"{layer.hooks.rendered.variable}={folder}/{layer.name}"
            for layer in applied(settings)
            if layer.hooks.rendered
        ),
    ]


def write(settings: Settings, root: Path) -> list[Path]:
    """Write the builds, and files that layers read besides the checkout, into it; return the paths."""
    folder = root / names.FOLDER / settings.environment
    contents = {
        f"{layer.name}/{name}": content
        for layer in applied(settings)
        if layer.hooks.rendered
        for name, content in layer.hooks.rendered.read().items()
    }
    for kind in names.KINDS:
        head = f"# {_HEADERS[kind]}\n# Written by `tpu builds render {settings.environment}`.\n"
        text = yaml.safe_dump(build(settings, kind), sort_keys=False, width=110)
        contents[f"{kind}.yaml"] = f"{head}#   {names.submit(settings)[kind]}\n{text}".encode()
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]
