"""Committed shards in the layout of kathir-ks/activation-extract, for people who have readers for it.

    OUT/tpu_3/shard_0001.pkl.gz    gzip of a pickle: {layer: [{sample_idx, activation, shape, text_preview}]}
    OUT/tpu_3/metadata.json        counts of all of them, once the last one is there
    OUT/tpu_3/source.json          which run, stream and points they were made of; ours alone

A pickle is made of one shard and nothing else, and created only if there is none, so what holds of the
shards holds of the pickles: every sample once, the same bytes (for one version of Python and NumPy).
Unlike there, `activation` has a row for each real token and none of padding, and since streams keep
no text, `text_preview` is the document's name. Whoever reads a pickle runs what is in it: read your own.
"""

import gzip
import hashlib
import io
import json
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from workload.activations.reader import Activations
from workload.activations.shard import Shard, folder
from workload.errors import ConfigError, DataError, Problem
from workload.runs.store import Store

FORMAT = "pkl.gz"
METADATA, SOURCE = "metadata.json", "source.json"
_PROTOCOL = 4  # what activation-extract's Python writes
# Of normals in bfloat16, 9, as there, took 40 times as long for 15 % less.
_LEVEL = 1
_PREVIEW = 200  # characters
_MB = 2**20
_OF_LAYER = re.compile(r"(\w+)\.(\d+)((?:\.h\d+)?)")


def by_layer(points: Sequence[str], kind: str | None = None) -> dict[int, str]:
    """The point of each layer that a run keeps: the layout has one tensor a layer.

    Args:
        points: that the run keeps.
        kind: which of them, `resid_post` or, of one head, `attn_z.h5`; may be left out where there is one.

    Raises:
        ConfigError: they are of several kinds and none is chosen, or there are none of it.
    """
    kinds: dict[str, dict[int, str]] = {}
    for point in points:
        if match := _OF_LAYER.fullmatch(point):
            kinds.setdefault(match[1] + match[3], {})[int(match[2])] = point
    if kind is None and len(kinds) == 1:
        (kind,) = kinds
    if kind not in kinds:
        stored = ", ".join(kinds) or "none of a layer"
        rule = f"must name one: {FORMAT} holds one tensor a layer, and the run keeps {stored}"
        fix = f"--point {next(iter(kinds))}" if kinds else 'extract points of layers, e.g. ["resid_post.*"]'
        raise ConfigError(f"--format {FORMAT}", [Problem("--point", kind or "(not given)", rule, fix)])
    return kinds[kind]


def convert(
    activations: Activations,
    out: Store,
    kind: str | None = None,
    worker: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> int:
    """Makes the pickles that aren't there; returns how many it made.

    Args:
        activations: the run.
        out: holds the workers' folders.
        kind: see `by_layer`.
        worker: the one whose shards to convert; all, unless given.
        say: takes a line about each that is made.

    Raises:
        ConfigError: see `by_layer`.
        DataError: a shard is damaged, or `out` holds another run or kind of point.
    """
    layers, made = by_layer(activations.points, kind), 0
    workers: dict[int, list[Shard]] = {}
    for name in activations.names:
        if worker is None or name.startswith(folder(worker)):
            one = activations.open(name)
            workers.setdefault(one.about.worker, []).append(one)
    for number, shards in workers.items():
        _settle(out, shards[0], layers)
        there = set(out.list(f"{_folder(number)}/"))
        names = [f"{_folder(number)}/{_file(one)}" for one in shards]
        for one, name in zip(shards, names, strict=True):
            if name not in there and out.create(name, pack(one, layers)):
                made += 1
                say(f"{name}: {len(one.ids)} samples of {len(layers)} layers")
        metadata = f"{_folder(number)}/{METADATA}"
        if len(shards) == shards[0].about.shards and metadata not in there:
            entries = [_entry(one, layers, out.read(name)) for one, name in zip(shards, names, strict=True)]
            out.create(metadata, (json.dumps(_metadata(entries), indent=2) + "\n").encode())
    return made


def _settle(out: Store, one: Shard, layers: Mapping[int, str]) -> None:
    """Takes the worker's folder for these shards, or finds it taken for them."""
    about, points = one.about, list(layers.values())
    mine = {"run_sha256": about.run_sha256, "stream_sha256": about.stream_sha256, "points": points}
    raw, name = (json.dumps(mine, indent=2) + "\n").encode(), f"{_folder(about.worker)}/{SOURCE}"
    if not out.create(name, raw) and out.read(name) != raw:
        fix = "name a new place for another run or point"
        raise DataError(f"{out.url}/{name}: is of another run, stream or point\n    fix: {fix}")


def pack(one: Shard, layers: Mapping[int, str]) -> bytes:
    """A shard as one file of that layout; takes several times the shard's size in memory."""
    found: dict[int, list[dict[str, Any]]] = {}
    for layer, point in sorted(layers.items()):
        values = one.read(point).astype(np.float32)
        found[layer] = [
            {
                "sample_idx": int(one.samples[place]),
                "activation": (stored := values[one.offsets[place] : one.offsets[place + 1]].copy()),
                "shape": stored.shape,
                "text_preview": document[:_PREVIEW],
            }
            for place, document in enumerate(one.ids)
        ]
    raw = io.BytesIO()
    # Neither a time nor a name in its header: the same bytes whenever it is made.
    with gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) as file:
        pickle.dump(found, file, _PROTOCOL)
    return raw.getvalue()


def _folder(worker: int) -> str:
    return f"tpu_{worker}"


def _file(one: Shard) -> str:
    return f"shard_{one.about.number:04}.{FORMAT}"


def _entry(one: Shard, layers: Mapping[int, str], raw: bytes) -> dict[str, Any]:
    """What metadata.json says of a shard; without paths, which change when a folder is moved."""
    samples, numbers = len(one.ids), sum(int(np.prod(one.shape(point))) for point in layers.values())
    return {
        "shard_id": one.about.number,
        "filename": _file(one),
        "file_size_mb": len(raw) / _MB,
        "buffer_size_mb": numbers * 4 / _MB,
        "layers": sorted(layers),
        "samples_per_layer": {str(layer): samples for layer in sorted(layers)},
        "total_samples_in_shard": samples * len(layers),
        "sha256": hashlib.sha256(raw).hexdigest(),
    }


def _metadata(shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    activations = sum(one["total_samples_in_shard"] for one in shards)
    return {
        "total_shards": len(shards),
        "total_activations": activations,
        "total_unique_samples": sum(one["total_samples_in_shard"] // len(one["layers"]) for one in shards),
        "shard_size_gb": max(one["buffer_size_mb"] for one in shards) / 1024,
        "upload_to_gcs": False,
        "gcs_bucket": None,
        "gcs_prefix": None,
        "shards": list(shards),
    }
