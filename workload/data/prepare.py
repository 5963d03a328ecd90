"""Turns text into token files, byte for byte the same each time.

    workload data prepare --source /usr/share/common-licenses --out /tmp/tokens

A token is a byte of UTF-8; 256 ends a document. Files are taken in the order of their
paths; what isn't UTF-8 text is skipped, and so is a text that was seen before.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from workload.data.tokens import MANIFEST, TOKEN, Shard
from workload.errors import DataError

END_OF_DOCUMENT = 256
VOCAB_SIZE = 257
SHARD_TOKENS = 2**26  # 128 MiB a file


@dataclass(frozen=True)
class Summary:
    """What became of the sources: counts of files and tokens."""

    documents: int
    tokens: int
    not_text: int
    repeated: int


def encode(text: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    """A document's tokens, with its end."""
    return np.append(np.frombuffer(text, np.uint8), np.uint16(END_OF_DOCUMENT)).astype(TOKEN)


def prepare(sources: Sequence[Path], out: Path, shard_tokens: int = SHARD_TOKENS) -> Summary:
    """Writes shards and, last of all, the manifest that makes them valid.

    Raises:
        DataError: no source, no text in the sources, or `out` holds something already.
    """
    missing = [str(source) for source in sources if not source.exists()]
    if missing:
        raise DataError(f"--source {', '.join(missing)}: no such file or folder\n    fix: name existing ones")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"--out {out}: is there and not empty\n    fix: name a new folder, or remove it")
    out.mkdir(parents=True, exist_ok=True)
    writer = _Writer(out, shard_tokens)
    seen: set[bytes] = set()
    not_text = repeated = 0
    for path in _files(sources):
        text = path.read_bytes()
        digest = hashlib.sha256(text).digest()
        if not _is_text(text):
            not_text += 1
        elif digest in seen:
            repeated += 1
        else:
            seen.add(digest)
            writer.add(text)
    writer.close_shard()
    summary = Summary(len(seen), sum(shard.tokens for shard in writer.shards), not_text, repeated)
    if not seen:
        raise DataError(
            f"--source {', '.join(map(str, sources))}: holds no UTF-8 text\n    fix: name another"
        )
    manifest = {
        "version": 1,
        "tokenizer": "bytes",
        "vocab_size": VOCAB_SIZE,
        "dtype": TOKEN.str,
        "documents": summary.documents,
        "tokens": summary.tokens,
        "shards": [asdict(shard) for shard in writer.shards],
    }
    (out / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    return summary


def _files(sources: Sequence[Path]) -> Iterator[Path]:
    """Regular files under the sources, each source's in the order of their paths within it."""
    for source in sources:
        if source.is_file():
            yield source
        else:
            found = [path for path in source.rglob("*") if path.is_file()]
            yield from sorted(found, key=lambda path: path.relative_to(source).as_posix())


def _is_text(raw: bytes) -> bool:
    if not raw or b"\0" in raw:
        return False
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


class _Writer:
    """Cuts a stream of documents into shards of at most `shard_tokens`."""

    def __init__(self, out: Path, shard_tokens: int):
        self.shards: list[Shard] = []
        self._out, self._shard_tokens = out, shard_tokens
        self._pending: list[bytes] = []
        self._tokens = 0

    def add(self, text: bytes) -> None:
        tokens = encode(text)
        while len(tokens):
            piece, tokens = np.split(tokens, [self._shard_tokens - self._tokens])
            self._pending.append(piece.tobytes())
            self._tokens += len(piece)
            if self._tokens == self._shard_tokens:
                self.close_shard()

    def close_shard(self) -> None:
        if not self._tokens:
            return
        raw = b"".join(self._pending)
        file = f"tokens-{len(self.shards):05}.bin"
        (self._out / file).write_bytes(raw)
        self.shards.append(Shard(file, self._tokens, hashlib.sha256(raw).hexdigest()))
        self._pending, self._tokens = [], 0
