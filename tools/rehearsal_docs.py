"""Blocks of the pages about the rehearsal, its stand-in provider and its emulated cloud."""

from __future__ import annotations

import dataclasses
import inspect
import tempfile
from pathlib import Path

from click.testing import CliRunner

import rehearsal.scenario.steps  # noqa: F401 - registers all steps
from cli.__main__ import tpu
from rehearsal.cloud.__main__ import NoHosts
from rehearsal.cloud.cloud import Cloud
from rehearsal.cloud.config import CloudConfig
from rehearsal.cloud.iam import iam
from rehearsal.providers.gcp import sdk
from rehearsal.providers.gcp.invokes import INVOKES
from rehearsal.providers.gcp.types import TYPES
from rehearsal.scenario.scenario import Scenario, load, name_of, own
from rehearsal.scenario.step import NOTHING, STEPS
from rehearsal.world import person
from tools.blocks import table

_COLUMNS = 100
_SET_BY_LOAD = ("path", "title", "steps")


def commands() -> str:
    """Return the help of `tpu rehearsal`, as a block of code."""
    shown = CliRunner().invoke(tpu, ["rehearsal", "--help"], prog_name="tpu", terminal_width=_COLUMNS)
    return f"```text\n{shown.output.rstrip()}\n```"


def scenarios() -> str:
    """Return the project's own scenarios."""
    return table(("scenario", "content"), ((f"`{name_of(path)}`", load(path).title) for path in own()))


def accounts() -> str:
    """Return the accounts of a world, as settings name them."""
    rows = ((f"`--as {who}`", f"`{iam.member(address)}`") for who, address in person.LOGINS.items())
    return table(("shell", "in settings"), rows)


def scenario_fields() -> str:
    """Return a Scenario's fields besides `steps`."""
    rows = []
    for field in dataclasses.fields(Scenario):
        if field.name not in _SET_BY_LOAD:
            default = field.default if field.default is not dataclasses.MISSING else "empty"
            rows.append((f"`{field.name}`", f"`{field.type}`", f"`{default}`"))
    return table(("field", "type", "default"), rows)


def steps() -> str:
    """Return all steps: signature and first sentence of the docstring."""
    rows = []
    for name, function in STEPS.items():
        _, *parameters = map(_parameter, inspect.signature(function).parameters.values())
        summary = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
        rows.append((f"`{name}({', '.join(parameters)})`", summary))
    return table(("step", "effect"), sorted(rows))


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    default = "{}" if parameter.default is NOTHING else repr(parameter.default)
    given = "" if parameter.default is parameter.empty else f" = {default}"
    return f"{stars}{parameter.name}: {parameter.annotation}{given}"


def provider_types() -> str:
    """Return the stand-in's resource types, their paths at Google and the properties that it refuses."""
    rows = []
    for resource in sorted(TYPES.values(), key=lambda resource: resource.table.token):
        entry = resource.table
        path = entry.service.base.removeprefix("https://") + entry.item
        refused = sdk.resource_type(entry.token).inputs.keys() - {field.name for field in entry.inputs}
        rows.append((_short(entry.token), f"`{path}`", ", ".join(f"`{name}`" for name in sorted(refused))))
    return table(("type", "at Google", "refused properties"), rows)


def provider_functions() -> str:
    """Return the stand-in's look-ups, one a line."""
    return "\n".join(f"- `{_short(token)}`" for token in INVOKES)


def _short(token: str) -> str:
    """Shorten a token: `gcp:storage/bucket:Bucket` is `storage.Bucket`."""
    return f"{token.split(':')[1].split('/')[0]}.{token.rsplit(':', 1)[1]}"


def cloud_methods() -> str:
    """Return Google's methods that are emulated, by API, without the API's own name before each."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        config = CloudConfig("p", folder, folder / "control.sock", "owner@example.com", "token")
        covered = Cloud(config, NoHosts()).front_door.covered()
    rows = []
    for api, methods in sorted(covered.items()):
        collections: dict[str, list[str]] = {}
        for method in methods:
            collection, _, verb = method.removeprefix(f"{api}.").rpartition(".")
            collection = collection.removeprefix("projects.").removeprefix("locations.")
            collections.setdefault(collection, []).append(verb)
        listed = "; ".join(f"{collection}: {', '.join(verbs)}" for collection, verbs in collections.items())
        if methods:
            rows.append((f"{api} ({len(methods)})", listed))
    return table(("API", "methods"), rows)
