"""Committed shards in the layout of kathir-ks/activation-extract, for readers of that layout.

    OUT/tpu_3/shard_0001.pkl.gz    gzip of a pickle: {layer: [{sample_idx, activation, shape, text_preview}]}
    OUT/tpu_3/metadata.json        counts of all shards, written after the last one
    OUT/tpu_3/source.json          run, stream and points of origin; not part of that layout

A pickle is made of one shard alone, and created only if there is none, so that each sample is in one
pickle, with the same bytes (for one version of Python and NumPy). Unlike there, `activation` has a row
for each real token and none for padding, and `text_preview` is the document's name, since streams keep
no text. Loading a pickle runs code: load only your own.
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
# Level 9, as there, took 40 times as long for 15 % less, of normals in bfloat16.
_LEVEL = 1
_PREVIEW = 200  # characters
_MB = 2**20
_OF_LAYER = re.compile(r"(\w+)\.(\d+)((?:\.h\d+)?)")


def by_layer(points: Sequence[str], kind: str | None = None) -> dict[int, str]:
    """Return the point of each layer, since the layout has one tensor a layer.

    Args:
        points: kept by the run.
        kind: `resid_post` or, of one head, `attn_z.h5`; may be omitted if the run keeps one kind.

    Raises:
        ConfigError: there are several kinds and none is chosen, or none of `kind`.
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
    progress: Callable[[str], None] = lambda line: None,
) -> int:
    """Create the missing pickles; return how many were created.

    Args:
        activations: the run.
        out: holds the workers' folders.
        kind: see `by_layer`.
        worker: whose shards to convert (default: all).
        progress: receives a line for each pickle created.

    Raises:
        ConfigError: see `by_layer`.
        DataError: a shard is damaged, or `out` holds another run or kind of point.
    """
    layers, made = by_layer(activations.points, kind), 0
    workers: dict[int, list[Shard]] = {}
    for name in activations.names:
        if worker is None or name.startswith(folder(worker)):
            shard = activations.open(name)
            workers.setdefault(shard.about.worker, []).append(shard)
    for number, shards in workers.items():
        _settle(out, shards[0], layers)
        existing = set(out.list(f"{_folder(number)}/"))
        names = [f"{_folder(number)}/{_file(shard)}" for shard in shards]
        for shard, name in zip(shards, names, strict=True):
            if name not in existing and out.create(name, pack(shard, layers)):
                made += 1
                progress(f"{name}: {len(shard.ids)} samples of {len(layers)} layers")
        metadata = f"{_folder(number)}/{METADATA}"
        if len(shards) == shards[0].about.shards and metadata not in existing:
            pairs = zip(shards, names, strict=True)
            entries = [_entry(shard, layers, out.read(name)) for shard, name in pairs]
            out.create(metadata, (json.dumps(_metadata(entries), indent=2) + "\n").encode())
    return made


def _settle(out: Store, shard: Shard, layers: Mapping[int, str]) -> None:
    """Reserve the worker's folder for these shards, or check that it is."""
    about, points = shard.about, list(layers.values())
    source = {"run_sha256": about.run_sha256, "stream_sha256": about.stream_sha256, "points": points}
    raw, name = (json.dumps(source, indent=2) + "\n").encode(), f"{_folder(about.worker)}/{SOURCE}"
    if not out.create(name, raw) and out.read(name) != raw:
        fix = "name a new place for another run or point"
        raise DataError(f"{out.url}/{name}: is of another run, stream or point\n    fix: {fix}")


def pack(shard: Shard, layers: Mapping[int, str]) -> bytes:
    """Return a shard as a file of that layout; needs several times the shard's size in memory."""
    samples: dict[int, list[dict[str, Any]]] = {}
    for layer, point in sorted(layers.items()):
        values = shard.read(point).astype(np.float32)
        samples[layer] = [
            {
                "sample_idx": int(shard.samples[place]),
                "activation": (stored := values[shard.offsets[place] : shard.offsets[place + 1]].copy()),
                "shape": stored.shape,
                "text_preview": document[:_PREVIEW],
            }
            for place, document in enumerate(shard.ids)
        ]
    raw = io.BytesIO()
    # Neither time nor name in the header, so that the bytes are reproducible.
    with gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) as file:
        pickle.dump(samples, file, _PROTOCOL)
    return raw.getvalue()


def _folder(worker: int) -> str:
    return f"tpu_{worker}"


def _file(shard: Shard) -> str:
    return f"shard_{shard.about.number:04}.{FORMAT}"


def _entry(shard: Shard, layers: Mapping[int, str], raw: bytes) -> dict[str, Any]:
    """Return a shard's entry of metadata.json, without paths, which would change with the folder."""
    count, numbers = len(shard.ids), sum(int(np.prod(shard.shape(point))) for point in layers.values())
    return {
        "shard_id": shard.about.number,
        "filename": _file(shard),
        "file_size_mb": len(raw) / _MB,
        "buffer_size_mb": numbers * 4 / _MB,
        "layers": sorted(layers),
        "samples_per_layer": {str(layer): count for layer in sorted(layers)},
        "total_samples_in_shard": count * len(layers),
        "sha256": hashlib.sha256(raw).hexdigest(),
    }


def _metadata(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    activations = sum(entry["total_samples_in_shard"] for entry in entries)
    return {
        "total_shards": len(entries),
        "total_activations": activations,
        "total_unique_samples": sum(e["total_samples_in_shard"] // len(e["layers"]) for e in entries),
        "shard_size_gb": max(entry["buffer_size_mb"] for entry in entries) / 1024,
        "upload_to_gcs": False,
        "gcs_bucket": None,
        "gcs_prefix": None,
        "shards": list(entries),
    }
