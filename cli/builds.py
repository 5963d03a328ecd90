"""`tpu builds`: bring layers up by Cloud Build: render its files, start a build, make plans in a build."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import yaml

from cli import options
from cli.command import Group
from infra.engine import plan as planning
from infra.engine.pulumi import confirm
from infra.engine.settings import from_file
from infra.errors import CommandError
from infra.google.client import Client, RequestError
from infra.layers.builds import commands, render, running
from infra.layers.builds.access import applied
from infra.layers.builds.settings import BuildsSettings
from infra.settings.schema import Settings


@click.group(cls=Group, epilog="\b\nExamples:\n  tpu builds submit dev preview")
def builds() -> None:
    """Bring the layers up by Cloud Build: one account previews, another applies (docs/builds.md)."""


def _settings(environment: str, root: Path) -> Settings:
    return options.with_layer("builds", BuildsSettings, from_file(environment, root))


@builds.command("render", examples=["dev"])
@options.environment
@click.pass_obj
def render_files(root: Path, environment: str) -> int:
    """Write the build files into cloudbuild/ENV, for gcloud and triggers."""
    settings = _settings(environment, root)
    folder = root / commands.FOLDER / environment
    try:
        paths = render.write(settings, folder)
    except OSError as error:
        raise CommandError(
            f"{error.filename or folder}: {error.strerror}\n    fix: make it writable"
        ) from None
    print(*(path.relative_to(root) for path in paths), sep="\n")
    first = "preview" if settings[BuildsSettings].image else "image"
    print(f"\nnext: tpu builds submit {environment} {first}, or the gcloud command in {first}.yaml")
    return 0


@builds.command("submit", examples=["dev preview", "dev provision --plan ID"])
@options.environment
@click.argument("build", metavar="BUILD", help=f"{', '.join(commands.KINDS)}, or a file with a build")
@click.option("--plan", metavar="ID", help="For provision: apply the plans saved by that preview.")
@click.option("--detach", is_flag=True, help="Return without waiting for the end.")
@options.yes
@click.pass_obj
def submit(root: Path, environment: str, build: str, plan: str | None, detach: bool, yes: bool) -> int:
    """Start a build of this checkout, and follow it."""
    settings = _settings(environment, root)
    request = _build(settings, build)
    if plan is not None:
        request = _with_plan(request, build, plan, environment)
    if build == "image":
        _require_files(settings, root)
    if question := _question(settings, request):
        confirm(question, yes)
    client, project = Client(settings.project), settings.project
    id_ = running.start(settings, request, root, client)
    print(f"build {id_}", flush=True)
    if detach:
        print(f"next: gcloud builds log {id_} --project={project}")
        return 0
    done = running.follow(project, id_, client, lambda line: print(f"  {line}", flush=True))
    if done["status"] == running.SUCCESS:
        print(done["status"])
        for image in (done.get("results") or {}).get("images") or ():
            name = image["name"].rpartition(":")[0]  # its tag is the build's id
            print(f"next: write builds:image: {name}@{image['digest']}")
        if build == "preview":
            print(f"next: tpu builds submit {settings.environment} provision --plan {id_}")
        return 0
    try:
        for line in running.log(project, id_, client):
            print(f"  | {line}", file=sys.stderr)
    except RequestError as error:
        print(f"  its log can't be read: {error}", file=sys.stderr)
    reason = (done.get("failureInfo") or {}).get("detail") or done.get("statusDetail", "")
    raise CommandError(
        f"the build {id_} ended as {done['status']}: {reason}\n"
        f"    fix: see its log: gcloud builds log {id_} --project={project}"
    )


def _with_plan(request: dict[str, Any], build: str, plan: str, environment: str) -> dict[str, Any]:
    """Return a build that applies a preview's plans. Raises CommandError if it can't."""
    if "_PLAN" not in request.get("substitutions", {}):
        raise CommandError(f"{build} applies no plan\n    fix: --plan is for provision alone")
    if not plan:  # from an unset variable: with --yes an update without a preview would be applied
        raise CommandError(
            "--plan names no preview\n"
            f"    fix: --plan ID, as `tpu builds submit {environment} preview` prints it; "
            "or leave --plan out, to apply without a preview"
        )
    return {**request, "substitutions": {**request["substitutions"], "_PLAN": plan}}


def _build(settings: Settings, name: str) -> dict[str, Any]:
    """Return a build by its name, or from a file. Raises CommandError."""
    if name in commands.KINDS:
        rendered = render.builds(settings).get(name)
        if rendered is None:
            raise CommandError(_lacking(settings, name))
        return rendered
    try:
        loaded = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        loaded = None
    if not isinstance(loaded, dict) or "steps" not in loaded:
        raise CommandError(
            f"no build {name}\n    fix: one of {', '.join(commands.KINDS)}, or a file that "
            f"`tpu builds render {settings.environment}` wrote"
        )
    return loaded


def _question(settings: Settings, build: dict[str, Any]) -> str:
    """Return the question before a build that changes resources without a preview; empty: none."""
    names = ", ".join(layer.name for layer in applied(settings))
    if "destroy" in build.get("tags", ()):
        return f"Take {names} of {settings.environment} down?"
    if build.get("substitutions", {}).get("_PLAN") == "":
        return f"Bring {names} of {settings.environment} up without a preview (--plan)?"
    return ""


def _lacking(settings: Settings, build: str) -> str:
    """Return the settings that a build lacks, and the next step."""
    images = "builds:baseImage and builds:dockerImage"
    if build == "image":
        return f"the build image needs {images}\n    fix: write both with their digests"
    first = "" if "image" in render.builds(settings) else f"write {images} with their digests; then "
    environment = settings.environment
    return (
        f"the build {build} runs in the image of builds:image, which isn't set\n"
        f"    fix: {first}tpu builds render {environment}, tpu builds submit {environment} image, and "
        "write the printed image"
    )


def _require_files(settings: Settings, root: Path) -> None:
    """Raise CommandError if a rendered file of the image is missing or old."""
    for name, content in render.image_files(settings).items():
        path = root / commands.FOLDER / settings.environment / name
        if not path.is_file() or path.read_bytes() != content:
            raise CommandError(
                f"{path.relative_to(root)} is missing, or older than the settings\n"
                f"    fix: tpu builds render {settings.environment}"
            )


@builds.command("plan", examples=["dev --to plans"])
@options.environment
@click.option(
    "--from", "preview", metavar="ID", default="", help="Fetch this preview's plans; empty: preview now."
)
@click.option("--to", "folder", metavar="DIR", type=click.Path(path_type=Path), required=True,
              help="Folder for the plans.")  # fmt: skip
@click.pass_obj
def plan(root: Path, environment: str, preview: str, folder: Path) -> int:
    """Fetch a preview's saved plans, or make them; the first step of a build."""
    settings = _settings(environment, root)
    names = [layer.name for layer in applied(settings)]
    if preview:
        running.fetch(settings, preview, names, folder, Client(settings.project))
        print(f"the plans of the preview {preview}: {', '.join(names)}")
        return 0
    planned = planning.plan(environment, root, names, folder)
    print(planning.text(planned))
    planned.refuse_failed()
    return 0
