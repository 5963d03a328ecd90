"""E8: tokens a second of extraction on the CPUs at hand, by ours and by peers in turn.

All take the same Qwen2.5-0.5B and the same documents, keep the same points and compute nothing after the
last of them. Ours is `workload extract` as users start it, from its first batch to its last shard on the
disk; of the peers the passes are timed alone, and what they keep stays in memory. Peers get the documents
sorted by length, which pads least, and once in their order, as their documentation has them.
"""

import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import qwen
from benchmarks.machine import described, spread
from benchmarks.peers import last, python, run
from tests.parity import environment
from workload.activations.reader import Activations
from workload.data.ragged import offsets

SCRIPT = Path(__file__).parent / "peers" / "torch_captures.py"
LAYERS = (6, 12, 18)
TOKENS, BATCH_TOKENS = 16_384, 2048  # at least, of all documents; computed at once
GOAL = 1.5
CONFIG = """
[model]
weights = "weights"

[extract]
points = {points}
dtype = "{dtype}"
batch_tokens = {batch_tokens}
shard_bytes = 20_000_000
"""


@dataclass(frozen=True)
class Way:
    """To extract: by whom, with documents in which order, computing in what."""

    who: str
    dtype: str = "float32"
    order: str = "sorted"  # or "given"; of a peer

    @property
    def name(self) -> str:
        """Name as the page shows it."""
        order = ["documents as they come"] * (self.order == "given")
        return ", ".join([self.who, *order, *([self.dtype] * (self.dtype != "float32"))])


PEERS = ("transformers", "transformer-lens", "nnsight")
WAYS = (
    *(Way(who) for who in ("ours", *PEERS)),
    *(Way(who, order="given") for who in PEERS),
    *(Way(who, "bfloat16") for who in ("ours", *PEERS)),
)


@dataclass(frozen=True)
class Turn:
    """Pass over all documents; for a peer, with its versions."""

    tokens_per_s: float
    padding: float  # places without a token, beside those with one
    versions: str = ""


def measure(rounds: int) -> dict[str, Any]:
    """Tokens a second of each way, over some rounds in which all take their turn."""
    interpreters: dict[str, str | Path] = {
        "transformers": environment.python(),
        "transformer-lens": python("transformer-lens"),
        "nnsight": python("nnsight"),
    }
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        root = Path(folder)
        documents = qwen.documents_of(TOKENS)
        qwen.write_stream(root / "stream.safetensors", documents)
        np.savez(
            root / "documents.npz",
            tokens=np.concatenate(documents),
            offsets=offsets(map(len, documents)),
            layers=LAYERS,
            batch_tokens=BATCH_TOKENS,
        )
        (root / "weights").symlink_to(qwen.weights())
        rates: dict[str, list[float]] = {way.name: [] for way in WAYS}
        turned: dict[str, Turn] = {}
        for number in range(rounds):
            for way in WAYS:
                if way.who == "ours":
                    entry = measure_ours(root, way, number)
                else:
                    entry = torch(root, way, interpreters[way.who])
                turned[way.name] = entry
                rates[way.name].append(entry.tokens_per_s)
                print(f"round {number + 1}: {way.name} {entry.tokens_per_s:,.0f} tokens/s", file=sys.stderr)
        apart = {way.name: furthest(root, way) for way in WAYS if way.who != "ours"}
    mine = {way.dtype: median(rates[way.name]) for way in WAYS if way.who == "ours"}
    return {
        "tokens_per_s": {name: spread(values) for name, values in rates.items()},
        "ours_is_faster_by": {
            way.name: mine[way.dtype] / median(rates[way.name]) for way in WAYS if way.who != "ours"
        },
        "ours_is_faster_by_at_least": GOAL,
        "padding": {name: item.padding for name, item in turned.items()},
        "furthest_from_ours": apart,
        "documents": len(documents),
        "tokens": sum(map(len, documents)),
        "on": described(["jax", "jaxlib"])
        | {"peers": {way.who: turned[way.name].versions for way in WAYS if way.who != "ours"}},
    }


def measure_ours(root: Path, way: Way, number: int) -> Turn:
    """Run the command and return the last line of its output."""
    points = [f"resid_post.{layer}" for layer in LAYERS]
    config = root / f"{way.dtype}.toml"
    config.write_text(CONFIG.format(points=points, dtype=way.dtype, batch_tokens=BATCH_TOKENS))
    line: list[str | Path] = [sys.executable, "-m", "workload", "extract", config]
    line += ["--stream", root / "stream.safetensors", "--dir", root, "--name", f"{way.dtype}-{number}"]
    output = run(line, {"DATA_DIR": str(root)})
    match = re.search(r"([\d,]+) tokens/s; .* padding (-?[\d.]+)%", output)
    assert match, output
    return Turn(float(match[1].replace(",", "")), float(match[2]) / 100)


def torch(root: Path, way: Way, interpreter: str | Path) -> Turn:
    """Return a peer in its environment."""
    line = [interpreter, SCRIPT, root / "weights", root / "documents.npz", _kept(root, way)]
    result = last(run([*line, way.who, way.order, way.dtype]))
    rate, padding = result["tokens"] / result["seconds"], result["places"] / result["tokens"] - 1
    return Turn(rate, padding, result["versions"])


def furthest(root: Path, way: Way) -> float:
    """Return the largest difference of a peer's values from ours, of the first document, beside their RMS."""
    document = Activations(str(root / "extractions" / f"{way.dtype}-0"))["00000"]
    foreign = np.load(_kept(root, way))
    apart = []
    for layer in LAYERS:
        mine = np.asarray(document[f"resid_post.{layer}"], np.float32)
        apart.append(float(np.abs(mine - foreign[str(layer)]).max() / np.sqrt(np.square(mine).mean())))
    return max(apart)


def _kept(root: Path, way: Way) -> Path:
    return root / f"{way.who}-{way.order}-{way.dtype}.npz"
