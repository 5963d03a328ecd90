"""E8: tokens a second of extraction on the CPUs at hand, by ours and by peers in turn.

All take the same Qwen2.5-0.5B in float32 and the same documents, keep the same points and compute nothing
after the last of them. Ours is `workload extract` as users start it, from its first batch to its last shard
on the disk; of the peers the passes are timed alone, and what they keep stays in memory.
"""

import re
import sys
import tempfile
from collections.abc import Callable
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
from workload.data.stream import offsets

SCRIPT = Path(__file__).parent / "peers" / "torch_captures.py"
LAYERS = (6, 12, 18)
TOKENS, BATCH_TOKENS = 16_384, 2048  # at least, of all documents; computed at once
GOAL = 1.5
CONFIG = f"""
[model]
weights = "weights"

[extract]
points = {[f"resid_post.{layer}" for layer in LAYERS]}
dtype = "float32"
batch_tokens = {BATCH_TOKENS}
shard_bytes = 20_000_000
"""


@dataclass(frozen=True)
class Turn:
    """One pass over all documents; of a peer, with its versions."""

    tokens_per_s: float
    padding: float  # places without a token, beside those with one
    versions: str = ""


def measure(rounds: int) -> dict[str, Any]:
    """Tokens a second of each, over some rounds in which all take their turn."""
    interpreters: dict[str, str | Path] = {
        "transformers": environment.python(),
        "transformer-lens": python("transformer-lens"),
        "nnsight": python("nnsight"),
    }
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        root = Path(folder)
        documents = qwen.some(TOKENS)
        qwen.write_stream(root / "stream.safetensors", documents)
        np.savez(
            root / "documents.npz",
            tokens=np.concatenate(documents),
            offsets=offsets(map(len, documents)),
            layers=LAYERS,
            batch_tokens=BATCH_TOKENS,
        )
        (root / "weights").symlink_to(qwen.weights())
        (root / "qwen.toml").write_text(CONFIG)
        turns: dict[str, Callable[[int], Turn]] = {
            "ours": lambda number: ours(root, f"run-{number}"),
            **{
                name: lambda _, name=name, where=where: torch(root, name, where)  # type: ignore[misc]
                for name, where in interpreters.items()
            },
        }
        rates: dict[str, list[float]] = {name: [] for name in turns}
        turned: dict[str, Turn] = {}
        for number in range(rounds):
            for name, turn in turns.items():
                turned[name] = one = turn(number)
                rates[name].append(one.tokens_per_s)
                print(f"round {number + 1}: {name} {one.tokens_per_s:,.0f} tokens/s", file=sys.stderr)
        apart = {name: furthest(root, name) for name in interpreters}
    return {
        "tokens_per_s": {name: spread(values) for name, values in rates.items()},
        "ours_is_faster_by": {name: median(rates["ours"]) / median(rates[name]) for name in interpreters},
        "ours_is_faster_by_at_least": GOAL,
        "padding": {name: one.padding for name, one in turned.items()},
        "furthest_from_ours": apart,
        "documents": len(documents),
        "tokens": sum(map(len, documents)),
        "on": described(["jax", "jaxlib"])
        | {"peers": {name: turned[name].versions for name in interpreters}},
    }


def ours(root: Path, name: str) -> Turn:
    """The command, and what it says at its end."""
    line: list[str | Path] = [sys.executable, "-m", "workload", "extract", root / "qwen.toml"]
    line += ["--stream", root / "stream.safetensors", "--dir", root, "--name", name]
    said = run(line, {"DATA_DIR": str(root)})
    found = re.search(r"([\d,]+) tokens/s; .* padding (-?[\d.]+)%", said)
    assert found, said
    return Turn(float(found[1].replace(",", "")), float(found[2]) / 100)


def torch(root: Path, name: str, interpreter: str | Path) -> Turn:
    """A peer in its environment."""
    line = [interpreter, SCRIPT, root / "weights", root / "documents.npz", root / f"{name}.npz", name]
    found = last(run(line))
    rate, padding = found["tokens"] / found["seconds"], found["places"] / found["tokens"] - 1
    return Turn(rate, padding, found["versions"])


def furthest(root: Path, name: str) -> float:
    """The largest difference of a peer's values from ours, of the first document, beside their RMS."""
    document = Activations(str(root / "extractions" / "run-0"))["00000"]
    theirs = np.load(root / f"{name}.npz")
    apart = []
    for layer in LAYERS:
        mine = document[f"resid_post.{layer}"]
        apart.append(float(np.abs(mine - theirs[str(layer)]).max() / np.sqrt(np.square(mine).mean())))
    return max(apart)
