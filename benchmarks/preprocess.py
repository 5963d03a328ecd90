"""Tokens a second and core of `workload preprocess` from text to token files, beside datatrove and Dolma.

All take the same JSON lines, in as many files as there are cores, and the same tokenizer, on all cores. Each
is a command as users start it, from its start to its end; ours finds repeated documents, rereads what it
wrote and starts Java along with it. The machine's other work falls on all of them: beside the time on the
clock stands the processor's time of a command and all that it starts. What a token takes of storage is the
size of the files by the number of tokens that each tool's own index or manifest says.
"""

import csv
import gzip
import json
import os
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from subprocess import DEVNULL, Popen
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from benchmarks.machine import described, session, spread
from benchmarks.peers import PINS, python
from tests.spark import environment

SCRIPT = Path(__file__).parent / "peers" / "datatrove_tokens.py"
END, VOCABULARY, TRAINED_ON_BYTES = "<|endoftext|>", 32_000, 8_000_000
BYTES = 256_000_000
GOAL = 1.5
LIMIT = 2  # bytes of a token whose number is below 65,536, unless tokens are compressed
SAMPLED_EVERY_S = 0.2  # so much of a process's end isn't counted
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Turn:
    """Measurement of a command: wall time, processor time, tokens written, and in how many bytes."""

    wall_s: float
    processor_s: float
    tokens: int
    token_bytes: int
    index_bytes: int


def measure(rounds: int) -> dict[str, Any]:
    """Each in turn, some rounds."""
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        root = Path(folder)
        documents = _write(root, cores)
        ways = {"ours": _measure_ours, "datatrove": _datatrove, "dolma": _dolma}
        turns: dict[str, list[Turn]] = {name: [] for name in ways}
        for number in range(rounds):
            for name, way in ways.items():
                turn = way(root, root / f"{name}-{number}", cores)
                turns[name].append(turn)
                print(f"round {number + 1}: {name} {turn}", file=sys.stderr, flush=True)
    ends = {name: result[-1] for name, result in turns.items()}
    by_clock = {name: [t.tokens / t.wall_s / cores for t in result] for name, result in turns.items()}
    of_processor = {name: [t.tokens / t.processor_s for t in result] for name, result in turns.items()}
    best = {kind: _ratio(rates) for kind, rates in (("clock", by_clock), ("processor", of_processor))}
    return {
        "documents": documents,
        "bytes": BYTES,
        "tokens": {name: end.tokens for name, end in ends.items()},
        "tokens_per_s_and_core": {name: spread(values) for name, values in by_clock.items()},
        "tokens_per_processor_s": {name: spread(values) for name, values in of_processor.items()},
        "ours_is_faster_by": best,
        "ours_is_faster_by_at_least": GOAL,
        "bytes_per_token": {
            name: {"tokens": end.token_bytes / end.tokens, "index": end.index_bytes / end.tokens}
            for name, end in ends.items()
        },
        "bytes_per_token_at_least": LIMIT,
        "on": described(["tokenizers", "pyarrow"])
        | {"peers": {name: PINS[name] for name in ("datatrove", "dolma")}},
    }


def _ratio(rates: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: median(rates["ours"]) / median(result) for name, result in rates.items() if name != "ours"}


def _write(root: Path, cores: int) -> int:
    """Python's own library and packages as JSON lines, and a tokenizer of them; how many documents."""
    texts, size = [], 0
    paths = sysconfig.get_paths()
    files = [path for key in ("stdlib", "purelib") for path in sorted(Path(paths[key]).rglob("*.py"))]
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.strip() and size < BYTES:
            texts.append(text)
            size += len(text.encode())
    (root / "raw").mkdir()
    for number in range(cores):
        lines = [
            json.dumps({"id": str(index), "text": text, "source": "python"}) + "\n"
            for index, text in enumerate(texts)
            if index % cores == number
        ]
        (root / "raw" / f"{number}.jsonl").write_text("".join(lines))
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    step = max(1, size // TRAINED_ON_BYTES)
    made.train_from_iterator(texts[::step], trainer)
    (root / "bpe").mkdir()
    saved = json.loads(made.to_str())
    saved["model"]["merges"] = [
        " ".join(merge) for merge in saved["model"]["merges"]
    ]  # for Dolma's older one
    (root / "bpe" / "tokenizer.json").write_text(json.dumps(saved))
    return len(texts)


def _timed(line: Sequence[str | Path], more: Mapping[str, str]) -> tuple[float, float]:
    """Seconds by the clock until a command ends, and of the processor of all processes of its session."""
    begun, used_s = time.monotonic(), dict[int, float]()
    child = Popen(
        line,
        env={**os.environ, **more},
        stdout=DEVNULL,
        stderr=DEVNULL,
        cwd=environment.ROOT,
        start_new_session=True,
    )
    while child.poll() is None:
        used_s |= _processor_s(child.pid)
        time.sleep(SAMPLED_EVERY_S)
    wall_s = time.monotonic() - begun
    if child.returncode:
        raise SystemExit(f"{' '.join(map(str, line))}: ended with {child.returncode}")
    return wall_s, sum(used_s.values())


def _processor_s(leader: int) -> dict[int, float]:
    """Of each process of a session, so far; Spark doesn't wait for its own, which a parent's sum lacks."""
    return {pid: (int(fields[11]) + int(fields[12])) / _TICKS for pid, fields in session(leader)}


def _measure_ours(root: Path, out: Path, cores: int) -> Turn:
    settings = {"input.sources": root / "raw", "output.url": out, "output.shards": 4 * cores}
    settings |= {"tokenizer.name": root / "bpe"}
    given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    master = ["--master", f"local[{cores}]"]
    line: list[str | Path] = [environment.python(), "-m", "workload", "preprocess", "text.toml", *master]
    wall_s, processor_s = _timed([*line, *given], {})
    (manifest,) = out.glob("*/manifest.json")
    tokens = json.loads(manifest.read_text())["tokens"]
    return Turn(wall_s, processor_s, tokens, _size(out, "*/tokens-*.bin"), _size(out, "*/index-*.jsonl"))


def _datatrove(root: Path, out: Path, cores: int) -> Turn:
    line: list[str | Path] = [
        python("datatrove"),
        SCRIPT,
        root / "raw",
        out,
        root / "bpe" / "tokenizer.json",
        END,
        str(cores),
    ]
    wall_s, processor_s = _timed(line, {"HF_HUB_OFFLINE": "1"})
    # Of each file: the tokenizer, how many tokens, the same for people.
    tokens = sum(int(path.read_text().splitlines()[1]) for path in out.glob("tokens/*.ds.metadata"))
    return Turn(wall_s, processor_s, tokens, _size(out, "tokens/*.ds"), _size(out, "tokens/*.ds.index"))


def _dolma(root: Path, out: Path, cores: int) -> Turn:
    """Its tokenizer is told the number of the end, which is the first of the vocabulary."""
    line: list[str | Path] = [
        python("dolma").with_name("dolma"),
        "tokens",
        "--documents",
        root / "raw" / "*.jsonl",
    ]
    line += ["--destination", out, "--processes", str(cores), "--dtype", "uint16"]
    line += ["--tokenizer.name_or_path", root / "bpe" / "tokenizer.json"]
    line += ["--tokenizer.eos_token_id", "0", "--tokenizer.pad_token_id", "0"]
    wall_s, processor_s = _timed(line, {"HF_HUB_OFFLINE": "1"})
    tokens = 0
    for path in out.rglob("*.csv.gz"):  # of each document its first token, and the one after its last
        with gzip.open(path, "rt") as file:
            tokens += max(int(row[1]) for row in csv.reader(file))
    return Turn(wall_s, processor_s, tokens, _size(out, "**/*.npy"), _size(out, "**/*.csv.gz"))


def _size(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))
