"""The build files of an environment, as the Cloud Build API describes a build.

https://cloud.google.com/build/docs/api/reference/rest/v1/projects.builds
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import yaml

from infra.core.layer import Rendered
from infra.errors import CommandError
from infra.layers.builds import commands
from infra.layers.builds.access import applied
from infra.layers.builds.settings import BuildsSettings
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings
from infra.settings.sources import ROOT

Build = dict[str, Any]
Step = dict[str, Any]

PLANS = "plans"
"""Folder of the saved plans, in the workspace that all steps of a build share."""
DOCKERFILE = "Dockerfile"
_NAME = "builder"
_HOME = "/opt/tpu"
_HEADERS = {
    "image": "Builds the image that the other builds run in, and puts it into the repository.",
    "preview": "Previews the layers as an account that can't change it, and saves the plans in the bucket.",
    "provision": "Applies a preview's saved plans, layer by layer; without _PLAN those that it makes itself.",
    "destroy": "Takes the layers down, the last one first, unless something protected or living is there.",
}


def builds(settings: Settings) -> dict[str, Build]:
    """Return every build that the settings suffice for, by its name."""
    chosen = settings[BuildsSettings]
    rendered: dict[str, Build] = {}
    if chosen.base_image and chosen.docker_image:
        rendered["image"] = _image(settings)
    if chosen.image:
        rendered |= {
            "preview": _preview(settings), "provision": _provision(settings), "destroy": _destroy(settings),
        }  # fmt: skip
    return rendered


def write(settings: Settings, folder: Path) -> list[Path]:
    """Write all builds and return the paths. Raises CommandError if no build can be rendered."""
    rendered = builds(settings)
    if not rendered:
        raise CommandError(
            "no build can be rendered: builds need builds:image, and the build of that image "
            "builds:baseImage and builds:dockerImage\n"
            "    fix: write the last two, with digests, then `tpu builds render` again (docs/builds.md)"
        )
    of_image = image_files(settings) if "image" in rendered else {}
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for kind, build in rendered.items():
        path = folder / f"{kind}.yaml"
        head = f"# {_HEADERS[kind]}\n# Written by `tpu builds render {settings.environment}`.\n"
        start = f"#   {commands.submit(settings)[kind]}\n"
        path.write_text(head + start + yaml.safe_dump(build, sort_keys=False, width=110), encoding="utf-8")
        paths.append(path)
    for name, content in of_image.items():
        paths.append(folder / name)
        paths[-1].parent.mkdir(exist_ok=True)
        paths[-1].write_bytes(content)
    return paths


def image_files(settings: Settings, root: Path = ROOT) -> dict[str, bytes]:
    """Return the files of the image's build: a Dockerfile, and files that layers read besides the checkout.

    Raises InfraError if those aren't on this machine.
    """
    files = {DOCKERFILE: _dockerfile(settings, root).encode()}
    for layer, rendered in _rendered(settings):
        files |= {f"{layer}/{name}": content for name, content in rendered.read().items()}
    return files


def _dockerfile(settings: Settings, root: Path) -> str:
    """Return the Dockerfile: locked packages, Pulumi's CLI as set-up pins it, and its plugins."""
    locked = (root / "requirements.txt").read_text(encoding="utf-8")
    plugins = [
        f"pulumi plugin install resource {name} {match[1]}"
        for name in ("gcp", "kubernetes")
        if (match := re.search(rf"(?m)^pulumi-{name}==(\S+)", locked))
    ]
    taken = ""
    for layer, files in _rendered(settings):
        pins = hashlib.sha256((root / files.hashes).read_bytes()).hexdigest()[:16]  # others: another file
        place = f"{_HOME}/{commands.FOLDER}/{settings.environment}/{layer}"
        taken += f"# Files that the layer {layer} reads besides the checkout: pins {pins}.\n"
        taken += f"ENV {files.variable}={place}\nRUN cd {place} && sha256sum --check {_HOME}/{files.hashes}\n"
    return f"""\
# Written by `tpu builds render {settings.environment}`.
FROM {settings[BuildsSettings].base_image}
RUN apt-get update \\
 && apt-get install -y --no-install-recommends ca-certificates curl git \\
 && rm -rf /var/lib/apt/lists/*
WORKDIR {_HOME}
ENV TPU_CACHE=/opt/tpu-cache PULUMI_HOME=/opt/pulumi PATH={_HOME}/.venv/bin:{_HOME}/.venv/libexec:$PATH
COPY . .
RUN tools/setup.sh python \\
 && dir=$(tools/official-pulumi.sh "$TPU_CACHE") && ln -s "$dir"/pulumi* .venv/bin/ \\
 && {" && ".join(plugins)}
{taken}"""


def _rendered(settings: Settings) -> list[tuple[str, Rendered]]:
    """Return the files that layers read besides the checkout, by the layer's name."""
    return [(layer.name, layer.hooks.rendered) for layer in applied(settings) if layer.hooks.rendered]


def _build(settings: Settings, kind: str, who: str, steps: list[Step], **more: Any) -> Build:
    email = commands.account_emails(settings)[who]
    return {
        "steps": steps,
        "timeout": f"{settings[BuildsSettings].timeout_minutes * 60}s",
        "serviceAccount": f"projects/{settings.project}/serviceAccounts/{email}",
        **more,
        "options": {
            "logging": "CLOUD_LOGGING_ONLY",
            "substitutionOption": "MUST_MATCH",
            **({"env": _environment(settings)} if kind != "image" else {}),
        },
        "tags": ["tpu", settings.environment, kind],
    }


def _environment(settings: Settings) -> list[str]:
    return [
        f"PULUMI_BACKEND_URL=gs://{settings[StorageSettings].state_bucket_name}",
        "PULUMI_SKIP_UPDATE_CHECK=true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION=true",
        "PULUMI_DIY_BACKEND_GZIP=true",  # a state is written several times for each resource
    ]


def _step(settings: Settings, name: str, *arguments: str) -> Step:
    """Return a step that runs `tpu` in the builder image."""
    return {
        "id": name,
        "name": settings[BuildsSettings].image,
        "entrypoint": "tpu",
        "args": list(arguments),
    }


def _image(settings: Settings) -> Build:
    tag = f"{commands.repository(settings)}/{_NAME}:$BUILD_ID"
    path = f"{commands.FOLDER}/{settings.environment}/{DOCKERFILE}"
    build = {
        "id": "build",
        "name": settings[BuildsSettings].docker_image,
        "args": ["build", "--file", path, "--tag", tag, "."],
    }
    return _build(settings, "image", "image", [build], images=[tag])


def _preview(settings: Settings) -> Build:
    environment, names = settings.environment, [layer.name for layer in applied(settings)]
    step = _step(settings, "preview", "plan", environment, *names, "--save", PLANS)
    saved = f"gs://{settings[StorageSettings].state_bucket_name}/{commands.PLANS}$BUILD_ID/"
    return _build(
        settings, "preview", "preview", [step],
        artifacts={"objects": {"location": saved, "paths": [f"{PLANS}/*.json"]}},
    )  # fmt: skip


def _provision(settings: Settings) -> Build:
    environment, names = settings.environment, [layer.name for layer in applied(settings)]
    plan = ("builds", "plan", environment, "--from", "$_PLAN", "--to", PLANS)
    steps = [_step(settings, "plan", *plan)]
    for name in names:
        options = ("--plan", PLANS, "--skip-preview", "--yes")
        steps.append(_step(settings, f"apply-{name}", "infra", "up", environment, name, *options))
    return _build(settings, "provision", "apply", steps, substitutions={"_PLAN": ""})


def _destroy(settings: Settings) -> Build:
    environment, names = settings.environment, [layer.name for layer in applied(settings)]
    steps = [_step(settings, "check", "infra", "down", environment, *names, "--check")]
    for name in reversed(names):
        options = ("--skip-preview", "--yes")
        steps.append(_step(settings, f"destroy-{name}", "infra", "down", environment, name, *options))
    return _build(settings, "destroy", "apply", steps)
