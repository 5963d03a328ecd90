"""`tpu builds`: bring layers up and down by Cloud Build."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from cli import options
from cli.command import Group
from infra.engine.pulumi import confirm
from infra.engine.settings import from_file
from infra.errors import CommandError, InputError
from infra.google.client import Client, RequestError
from infra.layers.builds import names, render, running
from infra.layers.builds.access import applied
from infra.layers.builds.settings import BuildsSettings
from infra.settings.schema import Settings
from infra.settings.sources import INSTALLED


@click.group(cls=Group, epilog="\b\nExamples:\n  tpu builds submit dev provision --plan DIR")
def builds() -> None:
    """Bring the layers up and down by Cloud Build, as an account of its own (docs/guides/builds.md)."""


def _render(environment: str, root: Path) -> tuple[Settings, list[Path]]:
    """Write the build files. Raises CommandError where the layer is off, or the folder can't be written."""
    if INSTALLED:
        raise CommandError("a build runs a clone of the repository, not a wheel\n    fix: cd into a clone")
    settings = options.with_layer("builds", BuildsSettings, from_file(environment, root))
    try:
        return settings, render.write(settings, root)
    except OSError as error:
        name = error.filename or names.FOLDER
        raise CommandError(f"{name}: {error.strerror}\n    fix: make it writable") from None


@builds.command("render", examples=["dev"])
@options.environment
@click.pass_obj
def render_files(root: Path, environment: str) -> int:
    """Write the build files into cloudbuild/ENV, for gcloud and triggers."""
    _, paths = _render(environment, root)
    print(*(path.relative_to(root) for path in paths), sep="\n")
    print(f"\nnext: tpu builds submit {environment} provision, or the gcloud command in provision.yaml")
    return 0


@builds.command("submit", examples=["dev provision --plan DIR", "dev destroy"])
@options.environment
@click.argument("build", metavar="BUILD", type=click.Choice(names.KINDS))
@click.option(
    "--plan", "plans", metavar="DIR", type=options.PATH,
    help="For provision: apply these plans, as `tpu plan ENV --save DIR` wrote them.",
)  # fmt: skip
@click.option("--detach", is_flag=True, help="Return without waiting for the end.")
@options.yes
@click.pass_obj
def submit(root: Path, environment: str, build: str, plans: Path | None, detach: bool, yes: bool) -> int:
    """Start a build of this checkout, and follow it."""
    settings, _ = _render(environment, root)
    layers, request = [layer.name for layer in applied(settings)], render.build(settings, build)
    if plans is not None:
        _check_plans(plans, layers, build, environment)
        request["steps"] = request["steps"][1:]  # without the step that plans
    elif build == "provision":
        confirm(f"Bring {', '.join(layers)} of {environment} up without a preview (--plan)?", yes)
    else:
        confirm(f"Take {', '.join(layers)} of {environment} down?", yes)
    client, project = Client(settings.project), settings.project
    id_ = running.start(settings, request, root, client, plans)
    print(f"build {id_}", flush=True)
    if detach:
        print(f"next: gcloud builds log {id_} --project={project}")
        return 0
    done = running.follow(project, id_, client, lambda line: print(f"  {line}", flush=True))
    if done["status"] == "SUCCESS":
        print(done["status"])
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


def _check_plans(plans: Path, layers: list[str], build: str, environment: str) -> None:
    """Raise CommandError for a build that applies no plans, or a folder that lacks some."""
    if build != "provision":
        raise InputError(f"{build} applies no plan\n    fix: --plan is for provision alone")
    if missing := [layer for layer in layers if not (plans / f"{layer}.json").is_file()]:
        raise InputError(
            f"{plans} has no plan of {', '.join(missing)}\n"
            f"    fix: tpu plan {environment} {' '.join(layers)} --save {plans}, and look at what it prints"
        )
