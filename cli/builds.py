"""`tpu builds`: the layers by Cloud Build: render its files, start a build, and what builds run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from infra.core import layer as core_layer
from infra.engine import plan as planning
from infra.engine.pulumi import confirm
from infra.engine.settings import from_file
from infra.errors import CommandError
from infra.google.client import Client, RequestError
from infra.layers.builds import commands, render, running
from infra.layers.builds.access import applied
from infra.layers.builds.settings import BuildsSettings
from infra.settings.schema import Settings
from infra.settings.sources import ROOT


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Render, submit, plan."""
    options = _parser().parse_args(arguments)
    settings = from_file(options.environment, root)
    if settings.get(BuildsSettings) is None:
        raise CommandError(core_layer.off("builds", options.environment))
    if options.command == "render":
        folder = root / commands.FOLDER / options.environment
        try:
            paths = render.write(settings, folder)
        except OSError as error:
            raise CommandError(
                f"{error.filename or folder}: {error.strerror}\n    fix: let it be written to"
            ) from None
        print(*(path.relative_to(root) for path in paths), sep="\n")
        first = "preview" if settings[BuildsSettings].image else "image"
        print(
            f"\nnext: tpu builds submit {options.environment} {first}, or the gcloud command in {first}.yaml"
        )
        return 0
    if options.command == "submit":
        return _submit(settings, options, root)
    return _plan(settings, options, root)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tpu builds",
        description="The layers by Cloud Build: one account previews, another applies (docs/builds.md).",
        epilog="example: tpu builds submit dev preview",
    )
    found = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        one = found.add_parser(name, help=text, description=text)
        one.add_argument("environment", metavar="ENV", help="dev, prod, …: the settings in Pulumi.ENV.yaml")
        return one

    command("render", f"write the build files into {commands.FOLDER}/ENV, for gcloud and triggers")
    submitting = command("submit", "start a build on this checkout, and follow it")
    submitting.add_argument("build", metavar="BUILD", help=f"{', '.join(commands.KINDS)}, or a file with one")
    submitting.add_argument("--plan", metavar="ID", help="of provision: apply what that preview has saved")
    submitting.add_argument("--detach", action="store_true", help="don't wait for its end")
    submitting.add_argument("--yes", action="store_true", help="don't ask; required without a terminal")
    plan = command("plan", "what a build begins with: fetch a preview's saved plans, or make them")
    plan.add_argument("--from", dest="preview", metavar="ID", default="", help="empty: preview now")
    plan.add_argument("--to", metavar="DIR", type=Path, required=True, help="folder for the plans")
    return parser


def _submit(settings: Settings, options: argparse.Namespace, root: Path) -> int:
    build = _build(settings, options.build)
    if options.plan is not None:
        if "_PLAN" not in build.get("substitutions", {}):
            raise CommandError(f"{options.build} applies no plan\n    fix: --plan is for provision alone")
        if not options.plan:  # of a variable that wasn't set: with --yes no one would see what is applied
            raise CommandError(
                "--plan names no preview\n"
                f"    fix: --plan ID, as `tpu builds submit {settings.environment} preview` prints it; "
                "or leave --plan out, to apply what no one has seen"
            )
        build["substitutions"] = {**build["substitutions"], "_PLAN": options.plan}
    if options.build == "image":
        _require_files(settings, root)
    if question := _question(settings, build):
        confirm(question, options.yes)
    client, project = Client(settings.project), settings.project
    id_ = running.start(settings, build, root, client)
    print(f"build {id_}", flush=True)
    if options.detach:
        print(f"next: gcloud builds log {id_} --project={project}")
        return 0
    done = running.follow(project, id_, client, lambda line: print(f"  {line}", flush=True))
    if done["status"] == running.SUCCESS:
        print(done["status"])
        for image in (done.get("results") or {}).get("images") or ():
            name = image["name"].rpartition(":")[0]  # its tag is the build's id
            print(f"next: write builds:image: {name}@{image['digest']}")
        if options.build == "preview":
            print(f"next: tpu builds submit {settings.environment} provision --plan {id_}")
        return 0
    try:
        for line in running.log(project, id_, client):
            print(f"  | {line}", file=sys.stderr)
    except RequestError as error:
        print(f"  its log can't be read: {error}", file=sys.stderr)
    why = (done.get("failureInfo") or {}).get("detail") or done.get("statusDetail", "")
    raise CommandError(
        f"the build {id_} ended as {done['status']}: {why}\n"
        f"    fix: what its log says; all of it: gcloud builds log {id_} --project={project}"
    )


def _build(settings: Settings, which: str) -> dict[str, Any]:
    """A build by its name, or out of a file."""
    if which in commands.KINDS:
        found = render.builds(settings).get(which)
        if found is None:
            raise CommandError(_lacking(settings, which))
        return found
    try:
        loaded = yaml.safe_load(Path(which).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        loaded = None
    if not isinstance(loaded, dict) or "steps" not in loaded:
        raise CommandError(
            f"no build {which}\n    fix: one of {', '.join(commands.KINDS)}, or a file that "
            f"`tpu builds render {settings.environment}` wrote"
        )
    return loaded


def _question(settings: Settings, build: dict[str, Any]) -> str:
    """What to ask before a build that changes what wasn't previewed; empty: nothing."""
    names = ", ".join(layer.name for layer in applied(settings))
    if "destroy" in build.get("tags", ()):
        return f"Take {names} of {settings.environment} down?"
    if build.get("substitutions", {}).get("_PLAN") == "":
        return f"Bring {names} of {settings.environment} up without a preview (--plan)?"
    return ""


def _lacking(settings: Settings, which: str) -> str:
    """What a build needs before it can be rendered, and the next step."""
    images = "builds:baseImage and builds:dockerImage"
    if which == "image":
        return f"the build image needs {images}\n    fix: write both with their digests"
    first = "" if "image" in render.builds(settings) else f"write {images} with their digests; then "
    environment = settings.environment
    return (
        f"the build {which} runs in the image that builds:image names, and it names none\n"
        f"    fix: {first}tpu builds render {environment}, tpu builds submit {environment} image, and "
        "write the image that it prints"
    )


def _require_files(settings: Settings, root: Path) -> None:
    """Raises CommandError where the image's build would lack a file of the checkout, or find an old one."""
    for name, content in render.image_files(settings).items():
        path = root / commands.FOLDER / settings.environment / name
        if not path.is_file() or path.read_bytes() != content:
            raise CommandError(
                f"{path.relative_to(root)} isn't there, or isn't what the settings say\n"
                f"    fix: tpu builds render {settings.environment}"
            )


def _plan(settings: Settings, options: argparse.Namespace, root: Path) -> int:
    names = [layer.name for layer in applied(settings)]
    if options.preview:
        running.fetch(settings, options.preview, names, options.to, Client(settings.project))
        print(f"the plans of the preview {options.preview}: {', '.join(names)}")
        return 0
    found = planning.plan(options.environment, root, names, options.to)
    print(planning.text(found))
    found.refuse_failed()
    return 0
