"""Folders in buckets that runs of the trainer read: those without an object, before a slice is paid for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from infra.errors import InputError, Problem, listed
from infra.google.client import Client, RequestError, bucket_url
from infra.settings.commands import PLACES, Training, given, training
from infra.slices.nodes import Node


def require(google: Client, environment: str, runs: Iterable[tuple[str, str]], folder: Path | None) -> None:
    """Raise InputError for folders that hold nothing; see `missing`. `runs`: the name and run of each."""
    problems = [problem for name, run in runs for problem in missing(google, environment, name, run, folder)]
    if problems:
        raise InputError(listed("what the programs read", problems))


def of(nodes: Iterable[Node]) -> dict[tuple[str, str], None]:
    """Return the runs of nodes, each once, with the setting that has them."""
    return dict.fromkeys((f"tpu:slices, {node.slice}", node.run) for node in nodes if node.run)


def missing(google: Client, environment: str, name: str, run: str, folder: Path | None) -> Iterator[Problem]:
    """Yield the problems of a run's data, held-out data and weights in buckets where nothing is.

    A bucket that isn't there yet, or that this login may not list, says nothing.

    Args:
        google: as the login.
        environment: of the command that uploads.
        name: of the run, for messages.
        run: command line; programs besides the trainer aren't known.
        folder: of configs that aren't packaged; None: they aren't here.
    """
    chosen = training(run)
    for key, url in _folders(chosen, folder).items() if chosen else ():
        bucket, _, prefix = url.removeprefix("gs://").rstrip("/").partition("/")
        query = {"prefix": f"{prefix}/" if prefix else "", "fields": "items(name)", "maxResults": "1"}
        try:
            present = google.json("GET", f"{bucket_url(bucket)}/o", query).get("items")
        except RequestError:
            continue
        if not present:
            fix = f"tpu data put {environment} FOLDER uploads it; gcloud storage ls lists what is there"
            yield Problem(name, f"{key} {url}", "nothing is there, and the program would end at once", fix)


def _folders(chosen: Training, folder: Path | None) -> dict[str, str]:
    """Return the folders in buckets that a run reads, by the setting."""
    values = given(chosen, folder)
    sources = values.pop("data.sources", None)
    for number, source in enumerate(sources if isinstance(sources, list) else ()):
        values[f"data.sources[{number}].path"] = source.get("path") if isinstance(source, dict) else None
    return {
        key: str(url)
        for key, url in values.items()
        if (key in PLACES or key.startswith("data.sources[")) and str(url).startswith("gs://")
    }
