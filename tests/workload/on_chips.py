"""Extracts on eight devices, by our design and by activation-extract's, and writes down who saw what.

python -m tests.workload.on_chips FOLDER
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import load_file

from tests.workload import activation_extract
from tests.workload.extracting import ARCH, CONFIG, extract, make_stream, save_weights
from workload.activations.reader import Activations
from workload.data import stream as streams
from workload.extract.forward import Forward
from workload.extract.packing import Shape
from workload.extract.points import Wanted
from workload.runs.store import FolderStore

LENGTHS = [5 + n % 40 for n in range(77)]  # fill no whole number of batches


def main(root: Path) -> None:
    """Each finding for both."""
    weights = save_weights(root / "weights", ARCH)
    (root / "stream_003.safetensors").write_bytes(make_stream(LENGTHS))
    stream = streams.read(str(root / "stream_003.safetensors"))
    config = replace(CONFIG, extract=replace(CONFIG.extract, points=("resid_pre.0",), row_tokens=128))
    extract(config, stream, weights, FolderStore(root / "run"))
    embed_VxD = load_file(weights / "model.safetensors")["model.embed_tokens.weight"]

    # What enters the first layer tells which tokens a row is of.
    documents = list(Activations(str(root / "run")))
    right = [np.array_equal(document["resid_pre.0"], embed_VxD[document.tokens]) for document in documents]
    named = [
        np.array_equal(document.tokens, stream.document(stream.ids.index(document.id)))
        for document in documents
    ]
    rows = [len(document["resid_pre.0"]) for document in documents]
    labels = activation_extract.labelled(range(30), a_batch=32, hosts=4)

    forward = Forward(ARCH, [Wanted(0, "resid_pre")], Shape(8, 128), "float32")
    tokens, _ = forward.place((((0,), (1,), (2,))), stream)
    on_one_chip = activation_extract.on_one_chip(np.zeros((8, 128), np.int32))

    mesh = jax.make_mesh((4, 2), ("data", "fsdp"))
    copied = jax.device_put(np.zeros((8, 16), np.float32), NamedSharding(mesh, PartitionSpec("data")))
    mapping = {
        "ours": {
            "lost": len(LENGTHS) - len(documents),
            "wrong": len(documents) - sum(a and b for a, b in zip(right, named, strict=True)),
            "chips": len(tokens.sharding.device_set),
            "rows of a chip": sorted({part.data.shape[0] for part in tokens.addressable_shards}),
            "rows too many": sum(rows) - sum(LENGTHS),
        },
        "theirs": {
            "lost": 30 - len(labels),
            "wrong": sum(name != sample for name, sample in labels),
            "chips": len(on_one_chip.sharding.device_set),
            "rows too many": len(activation_extract.gathered(copied)) - 8,
        },
    }
    (root / "found.json").write_text(json.dumps(mapping))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
