"""`tpu data`: a user's own text, tokens and weights into the bucket, or onto the data disk."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from cli import options
from cli.command import Group
from infra.catalog import region_of
from infra.core.names import NAME_LENGTH
from infra.engine.settings import from_file
from infra.errors import InputError
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings
from infra.slices import nodes
from infra.slices.settings import TpuSettings
from views.counts import counted
from workload.arguments import HUB_ID

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SNAPSHOT = re.compile(rf"[a-z]([a-z0-9-]{{0,{NAME_LENGTH - 2}}}[a-z0-9])?")
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja")
_HELD_OUT = "train CONFIG --set observe.eval_path={}, if it is held out"
_RUNS = {
    "marks-00000.bin": ("train llama-3.1-8b-sft.toml --set data.path={}", _HELD_OUT),  # of conversations
    "manifest.json": ("train tiny.toml --set data.path={}", _HELD_OUT),
    "streams.json": ("extract qwen2.5-0.5b.toml --stream {}",),
    "config.json": (
        "train tiny.toml --set model=weights --set train.init_from={}",
        "extract qwen2.5-0.5b.toml --set model.weights={} --stream URL",
    ),
}
"""Commands that read a folder, by the first of these files in it."""
_SOURCES = click.argument("sources", metavar="SOURCE...", nargs=-1, help="files or folders")
_SKIP_HIDDEN = click.option("--skip-hidden", is_flag=True, help="Leave out files and folders of names .…")


@click.group(cls=Group)
def data() -> None:
    """Bring your own text, tokens and weights to the hosts."""


@data.command(examples=["dev tokens/", "dev a.jsonl b.jsonl --to text", "dev --hub Qwen/Qwen2.5-0.5B"])
@options.environment
@_SOURCES
@click.option(
    "--to", "name", metavar="NAME", help="Folder below data/ of the bucket; default: SOURCE's name."
)
@_SKIP_HIDDEN
@click.option("--hub", metavar="ID", help="Print the commands that fetch a model of the hub and upload it.")
@click.pass_obj
def put(
    root: Path, environment: str, sources: Sequence[str], name: str | None, skip_hidden: bool,
    hub: str | None,
) -> int:  # fmt: skip
    """Upload a folder's contents, or several files and folders, below data/NAME/ of ENV's bucket.

    A repeated call resumes: objects with the same bytes are passed over. None is replaced.
    """
    if hub is not None:
        print(_from_hub(environment, hub, name, sources))
        return 0
    bucket = _settings(environment, root)[StorageSettings].bucket_name
    name = _name(sources, name)
    from infra.publish import own_data  # slow to import

    files = own_data.gather([Path(source) for source in sources], skip_hidden)
    lacking = own_data.missing(files, bucket, name)
    url, total = own_data.url(bucket, name), sum(file.size_bytes for file in lacking)
    present = len(files) - len(lacking)
    print(
        f"{url}: {counted(len(lacking), 'file')}, {_size(total)}, to upload; {present} are there already",
        flush=True,
    )
    if lacking:
        from cli.publish import progress
        from infra.publish.publishing import uploading

        with uploading(progress()) as shown:
            done = own_data.put(lacking, bucket, name, lambda bytes_done: shown(bytes_done, total))
        present += done.already_there
        print(f"{url}: {counted(done.uploaded, 'file')} uploaded, {present} were there already")
    print(f"next: {_following(environment, url, sources, [file.name for file in files])}")
    return 0


@data.command(examples=["dev tokens/ Llama-3.1-8B/ --skip-hidden --name training-data"])
@options.environment
@_SOURCES
@click.option("--name", metavar="SNAPSHOT", help="Name of the snapshot; default: SOURCE's, in lower case.")
@click.option("--zone", metavar="ZONE", help="Zone of the machine; default: the first of ENV's slices.")
@_SKIP_HIDDEN
@click.pass_obj
def snapshot(
    root: Path, environment: str, sources: Sequence[str], name: str | None, zone: str | None,
    skip_hidden: bool,
) -> int:  # fmt: skip
    """Print the commands that make a data snapshot from files, in their order; run none of them."""
    from infra.publish import own_data  # slow to import
    from infra.publish.snapshot import commands, settings_lines

    settings = _settings(environment, root)
    name = name or re.sub(r"[^a-z0-9]+", "-", _name(sources, None, "--name").lower()).strip("-")
    if not _SNAPSHOT.fullmatch(name):
        rule = f"1 to {NAME_LENGTH} lowercase letters, digits and hyphens, first a letter, last no hyphen"
        raise InputError(f"--name: {name!r} must be {rule}\n    fix: --name training-data")
    files = own_data.gather([Path(source) for source in sources], skip_hidden)
    size_bytes = sum(file.size_bytes for file in files)
    url = own_data.url(settings[StorageSettings].bucket_name, name)
    given = shlex.join(["tpu", "data", "put", environment, *sources, "--to", name])
    print("\n".join([
        "set -e",
        f"# {counted(len(files), 'file')}, {_size(size_bytes)}, into the bucket.",
        given + (" --skip-hidden" if skip_hidden else ""),
        commands(settings, url, name, _zone(settings, zone), size_bytes),
        f"# Then write into Pulumi.{environment}.yaml, and run tpu up {environment}:",
        *(f"#   {line}" for line in settings_lines(settings, name, size_bytes)),
    ]))  # fmt: skip
    return 0


def _settings(environment: str, root: Path) -> Settings:
    return options.with_layer("storage", StorageSettings, from_file(environment, root))


def _name(sources: Sequence[str], name: str | None, option: str = "--to") -> str:
    """Return the name of the data. Raises InputError."""
    if not sources:
        raise InputError("SOURCE: nothing to upload is named\n    fix: name files or folders")
    if urls := [source for source in sources if "://" in source]:
        fix = "name files or folders here; gcloud storage cp copies between buckets"
        raise InputError(f"SOURCE: {urls[0]} is no path of this machine\n    fix: {fix}")
    if name is None and len(sources) > 1:
        raise InputError(f"{option}: {len(sources)} sources need a name\n    fix: {option} NAME")
    name = Path(sources[0]).resolve().name if name is None else name
    if not _NAME.fullmatch(name):
        rule = "must be 1 to 100 letters, digits, '-', '_' and '.', first a letter or digit"
        raise InputError(f"{option}: {name!r} {rule}\n    fix: {option} NAME")
    return name


def _from_hub(environment: str, model: str, name: str | None, sources: Sequence[str]) -> str:
    """Return the commands that fetch a model of the hub and upload it. Raises InputError."""
    if sources or not HUB_ID.fullmatch(model):
        wrong = f"{sources[0]} beside --hub" if sources else f"--hub {model}"
        fix = "--hub OWNER/MODEL alone, e.g. meta-llama/Llama-3.1-8B"
        raise InputError(f"{wrong}: --hub takes an id of the hub, and no SOURCE\n    fix: {fix}")
    folder = model.partition("/")[2]
    fetch = shlex.join(["hf", "download", model, "--local-dir", folder, "--include", *_HUB_FILES])
    upload = ["tpu", "data", "put", environment, folder, "--skip-hidden", *(["--to", name] if name else [])]
    return f"{fetch}\n{shlex.join(upload)}"


def _zone(settings: Settings, zone: str | None) -> str:
    """Return the zone of the machine that writes the disk. Raises InputError."""
    location = settings[StorageSettings].location
    known = nodes.zones(settings) if settings.get(TpuSettings) else ()
    near = [candidate for candidate in known if region_of(candidate) == location]
    if not zone and not near:
        raise InputError(f"--zone: no slice is in {location}\n    fix: --zone {location}-b, or another zone")
    if zone and region_of(zone) != location:
        raise InputError(f"--zone: {zone} isn't in {location}, the bucket's region\n    fix: a zone there")
    return zone or near[0]


def _following(environment: str, url: str, sources: Sequence[str], names: Sequence[str]) -> str:
    """Return what to do with the objects, by what they are."""
    folders: dict[str, set[str]] = {}
    for folder, file in (name.rpartition("/")[::2] for name in names):
        folders.setdefault(f"{url}/{folder}".rstrip("/"), set()).add(file)
    runs = [
        run.format(folder)
        for folder, files in folders.items()
        for run in next((runs for marker, runs in _RUNS.items() if marker in files), ())
    ]
    if runs:
        return f"in Pulumi.{environment}.yaml, as a slice's run:\n  " + "\n  ".join(runs)
    prepare = ["workload", "data", "prepare", "--source", *sources, "--out", "tokens"]
    return f"{shlex.join(prepare)}, then tpu data put {environment} tokens"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
