"""Text of every kind that a run reads, good and bad, with what must become of it."""

import gzip
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow  # type: ignore[import-untyped]
import tokenizers
from pyarrow import parquet
from tokenizers import decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"


@dataclass(frozen=True)
class Expected:
    """Of a corpus: documents that differ, and lines, rows and files that are rejected, by reason."""

    documents: int
    rejected: dict[str, int]


def texts(count: int, seed: int, words: int = 300) -> list[str]:
    """Documents that differ."""
    drawn = random.Random(seed)
    known = [f"{drawn.choice('abcdefghijkl')}{number % 97}" for number in range(2000)]
    return [" ".join(drawn.choices(known, k=words)) + f" grüße {seed}-{number}" for number in range(count)]


def lines(result: list[str]) -> bytes:
    return b"".join(
        json.dumps({"id": 1, "text": text}, ensure_ascii=False).encode() + b"\n" for text in result
    )


def write_zstandard(path: Path, raw: bytes) -> None:
    with pyarrow.CompressedOutputStream(str(path), "zstd") as out:
        out.write(raw)


def write_parquet(path: Path, column: str, values: list[Any], rows: int = 1000) -> None:
    parquet.write_table(pyarrow.table({column: values}), path, row_group_size=rows)


def clean(folder: Path) -> Expected:
    """Text, lines, gzip and Parquet, ten documents of it twice, nothing bad."""
    folder.mkdir(parents=True)
    for number, text in enumerate(texts(6, seed=1)):
        (folder / f"{number}.txt").write_text(text)
    items = texts(900, seed=2)
    (folder / "large.jsonl").write_bytes(lines(items + items[:10]))
    (folder / "more.jsonl.gz").write_bytes(gzip.compress(lines(texts(50, seed=3))))
    write_parquet(folder / "rows.parquet", "text", texts(300, seed=5), rows=100)
    return Expected(6 + 900 + 50 + 300, {"repeats": 10})


def mixed(folder: Path) -> Expected:
    """The clean one, and each kind of what is rejected."""
    before = clean(folder)
    write_zstandard(folder / "more.jsonl.zst", lines(texts(50, seed=4)))
    again = "  ".join(texts(900, seed=2)[7].split(" ")) + "\n"  # the same but for white space
    bad = [
        b'{"text": "cut\n',
        b'{"title": "no text"}\n',
        b'{"text": "\xff\xfe"}\n',
        b'{"text": 7}\n',
        b'{"text": null}\n',
        b'{"text": "  "}\n',
        b"\n",  # an empty line is none
        b"[1, 2]\n",
        lines([again]),
    ]
    (folder / "bad.jsonl").write_bytes(b"".join(bad))
    write_parquet(folder / "renamed.parquet", "body", ["a", "b", "c"])
    write_parquet(folder / "numbers.parquet", "text", [1, 2])
    (folder / "picture.png").write_bytes(b"\x89PNG\0\xff")
    (folder / "empty.txt").write_bytes(b"")
    rejected = {"repeats": 11, "not_json": 2, "no_field": 4, "not_utf8": 2, "not_text": 3, "empty": 3}
    return Expected(before.documents + 50, rejected)


def tokenizer(folder: Path) -> Path:
    """A BPE of 600 tokens, trained on what it will see."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts(100, seed=2), trainer)
    folder.mkdir(parents=True)
    made.save(str(folder / "tokenizer.json"))
    return folder
