"""Qwen2.5-0.5B at its true size, and documents, for the measurements of extraction.

Weights are drawn, since none can be had without a network; no speed depends on them. Documents are
functions and classes of Python's own library, one each, a token a byte: real text whose lengths
spread as documents' do, half of them below 400 tokens, a hundredth above 1900.
"""

import ast
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workload.data import stream as streams
from workload.data.stream import About
from workload.data.tokenizers import Bytes
from workload.model import decoder, huggingface
from workload.model.architecture import Architecture
from workload.model.generation import Generation
from workload.preflight.compiler import cache_folder

ARCH = Architecture(
    layers=24,
    d_model=896,
    heads=14,
    kv_heads=2,
    d_ff=4864,
    vocab_size=151_936,
    rope_theta=1e6,
    qkv_bias=True,
    tie_embeddings=True,
)
MAX_TOKENS = 2048  # of a document: longer ones are left out
SEED = 5


def weights() -> Path:
    """Return the folder of the weights, in bfloat16 as Hugging Face keeps them; made where it isn't there:
    20 s.
    """
    key = hashlib.sha256(json.dumps([asdict(ARCH), SEED]).encode()).hexdigest()[:16]
    folder = cache_folder().parent / f"weights-{key}"
    if not (folder / ".complete").exists():
        groups = ARCH.shapes()
        drawn = {
            group: {name: decoder.draw(name, shape, ARCH, SEED) for name, shape in groups[group].items()}
            for group in groups
        }
        huggingface.save(
            folder, {**drawn["ends"], "layers": drawn["layers"]}, ARCH, "bfloat16", Generation(longest=32_768)
        )
        (folder / ".complete").touch()
    return folder


def documents() -> list[NDArray[np.int32]]:
    """All of them, shuffled."""
    library = Path(os.__file__).parent
    texts = sorted({text for path in sorted(library.glob("*.py")) for text in _definitions(path)})
    tokens = [result.astype(np.int32) for result in Bytes().encode_alone(texts) if len(result) <= MAX_TOKENS]
    order = np.random.default_rng(SEED).permutation(len(tokens))
    return [tokens[n] for n in order]


def documents_of(tokens: int) -> list[NDArray[np.int32]]:
    """Return the first documents that hold so many tokens together."""
    taken, count = [], 0
    for document in documents():
        taken.append(document)
        count += len(document)
        if count >= tokens:
            break
    return taken


def write_stream(path: Path, documents: Sequence[NDArray[np.int32]]) -> Path:
    """Return a stream of them, numbered."""
    about = About(0, 1, "0" * 64, "0" * 64, Bytes.name, Bytes.identity, Bytes.vocab_size)
    names = [f"{number:05}" for number in range(len(documents))]
    path.write_bytes(streams.pack(about, documents, range(len(documents)), names))
    return path


def _definitions(path: Path) -> Iterator[str]:
    """Yield the text of every function and class at the top of a file."""
    source = path.read_text(encoding="utf-8")
    lines = source.split("\n")  # once: ast.get_source_segment splits all of it for each node
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            *whole, last = lines[node.lineno - 1 : node.end_lineno]
            yield "\n".join([*whole, last.encode()[: node.end_col_offset].decode()])
