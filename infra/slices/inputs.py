"""Folders in buckets that runs read: those without an object, before a slice is paid for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from infra.errors import InputError, Problem, listed
from infra.google.client import Client, RequestError, bucket_url
from infra.settings.commands import PLACES, Extraction, Training, extraction, given, training
from infra.slices.nodes import Node

STREAM = "--stream"


class Run(NamedTuple):
    """Program, by the setting that has it.

    Attributes:
        line: its command line; programs besides trainer and extractor aren't known.
        fleet: its item of tpu:slices with `count`, for which `tpu fleet deploy` makes streams; empty: none.
    """

    setting: str
    line: str
    fleet: str = ""


def require(
    google: Client,
    environment: str,
    runs: Iterable[Run],
    folder: Path | None,
    later: Collection[str] = (),
) -> None:
    """Raise InputError for folders that hold nothing; see `missing`."""
    problems = [problem for run in runs for problem in missing(google, environment, run, folder, later)]
    if problems:
        raise InputError(listed("what the programs read", problems))


def of(nodes: Iterable[Node]) -> dict[Run, None]:
    """Return the runs of nodes, each once, with the setting that has them."""
    return dict.fromkeys(
        Run(f"tpu:slices, {node.slice}", node.run, "" if node.member is None else node.slice)
        for node in nodes
        if node.run
    )


def missing(
    google: Client,
    environment: str,
    run: Run,
    folder: Path | None,
    later: Collection[str] = (),
) -> Iterator[Problem]:
    """Yield the problems of a run's data, held-out data, weights and streams in buckets where nothing is.

    A bucket that isn't there yet, or that this login may not list, says nothing.

    Args:
        google: as the login.
        environment: of the command that uploads.
        run: the program.
        folder: of configs that aren't packaged; None: they aren't here.
        later: settings whose folders are made before the run begins.
    """
    for key, url in folders(run.line, folder).items():
        if key in later:
            continue
        bucket, _, prefix = url.removeprefix("gs://").rstrip("/").partition("/")
        below = prefix if key == STREAM and prefix.endswith(".safetensors") else prefix and f"{prefix}/"
        query = {"prefix": below, "fields": "items(name)", "maxResults": "1"}
        try:
            present = google.json("GET", f"{bucket_url(bucket)}/o", query).get("items")
        except RequestError:
            continue
        if not present:
            made = f"tpu data put {environment} FOLDER uploads it"
            if key == STREAM:
                made = f"tpu workload data streams --source … --out {url}"
                made += f"; or tpu fleet deploy {environment} --slice {run.fleet}" if run.fleet else ""
            fix = f"{made}; gcloud storage ls lists what is there"
            rule = "nothing is there, and the program would end at once"
            yield Problem(run.setting, f"{key} {url}", rule, fix)


def folders(run: str, folder: Path | None) -> dict[str, str]:
    """Return the folders in buckets that a run reads, by the setting."""
    chosen: Training | Extraction | None = training(run) or extraction(run)
    if chosen is None:
        return {}
    values = given(chosen, folder)
    if isinstance(chosen, Extraction):
        values = {"model.weights": values.get("model.weights"), STREAM: chosen.stream}
    sources = values.pop("data.sources", None)
    for number, source in enumerate(sources if isinstance(sources, list) else ()):
        values[f"data.sources[{number}].path"] = source.get("path") if isinstance(source, dict) else None
    return {
        key: str(url)
        for key, url in values.items()
        if (key in (*PLACES, STREAM) or key.startswith("data.sources[")) and str(url).startswith("gs://")
    }
