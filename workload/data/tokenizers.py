"""Tokenizers: bytes, or a `tokenizer.json` of Hugging Face."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from workload.arguments import hub_fix
from workload.errors import DataError

T = TypeVar("T")
BESIDE = ("tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")
"""Files beside tokenizer.json that decide its texts."""
_ENDS = ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>")  # Llama 3, Qwen, Llama 2, Gemma


def batches(documents: Iterable[T], text: Callable[[T], str], most_characters: int) -> Iterator[list[T]]:
    """Yield documents in lists that reach `most_characters` with the last one, as a tokenizer takes them."""
    batch: list[T] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(text(document))
        if characters >= most_characters:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class Tokenizer(Protocol):
    """Converter of documents into tokens that end with `end_of_document`, which appears nowhere else."""

    name: str
    identity: str  # "bytes", or the sha256 of tokenizer.json
    vocab_size: int

    @property
    def end_of_document(self) -> int:
        """Token that ends each document; DataError if the tokenizer has none."""

    @property
    def begin_of_document(self) -> tuple[int, ...]:
        """Tokens put before each text, such as Llama's `<|begin_of_text|>`."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Files to keep with a model of these tokens: tokenizer.json and its settings."""

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """Return each text's tokens, with the begin and end of a document."""

    def encode_alone(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """Return each text's tokens as a model's input: with the begin of a document, without the end."""

    def placed(self, texts: Sequence[str]) -> list[tuple[NDArray[np.uint32], NDArray[np.int64]]]:
        """Return the tokens of `encode_alone`, and the characters at which each begins and ends."""


class Bytes:
    """Bytes of UTF-8 as tokens; 256 ends a document."""

    name = identity = "bytes"
    vocab_size = 257
    end_of_document = 256
    begin_of_document = ()
    files = ()

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """See `Tokenizer.encode`."""
        end = np.uint32(self.end_of_document)
        return [np.append(tokens, end) for tokens in self.encode_alone(texts)]

    def encode_alone(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """See `Tokenizer.encode_alone`."""
        return [np.frombuffer(text.encode(), np.uint8).astype(np.uint32) for text in texts]

    def placed(self, texts: Sequence[str]) -> list[tuple[NDArray[np.uint32], NDArray[np.int64]]]:
        """See `Tokenizer.placed`."""
        sizes = [[len(character.encode()) for character in text] for text in texts]
        begins = [np.repeat(np.arange(len(widths)), widths) for widths in sizes]
        places = [np.stack([begin, begin + 1], axis=1) for begin in begins]
        return list(zip(self.encode_alone(texts), places, strict=True))


class HuggingFace:
    """Tokenizer of a `tokenizer.json`; encodes on all cores."""

    def __init__(self, path: Path, end: str = "", templated: bool = False):
        """Read the file.

        Args:
            path: of tokenizer.json, or of its folder.
            end: token that ends a document (default: the first of the usual names).
            templated: texts come from a chat template: a special token spelled out in a text is that
                token, and `encode_alone` adds none. Else it is ordinary text.

        Raises:
            DataError: the file can't be read, cuts or pads texts, or lacks the end token.
        """
        try:
            import tokenizers
        except ModuleNotFoundError:
            fix = "pip install tokenizers, or prepare the data where it is: hosts need only the token files"
            raise DataError(f"--tokenizer {path}: needs the package tokenizers\n    fix: {fix}") from None
        self._file = file = path / "tokenizer.json" if path.is_dir() else path
        self._end, self._templated = end, templated
        try:
            raw = file.read_bytes()
        except OSError as error:
            fix = "--tokenizer names a tokenizer.json, or the folder that holds it"
            fix = hub_fix(str(path), path) or fix
            raise DataError(f"{file}: can't be read: {error.strerror}\n    fix: {fix}") from None
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(raw.decode())
        except Exception as error:  # the library raises nothing more precise
            raise DataError(
                f"{file}: is not a tokenizer.json: {error}\n    fix: get the file again"
            ) from None
        cut = [name for name in ("truncation", "padding") if getattr(self._tokenizer, name)]
        if cut:
            raise DataError(
                f"{file}: has {' and '.join(cut)}, which would change documents in silence\n"
                f"    fix: set {' and '.join(map(repr, cut))} to null in a copy of it"
            )
        self._tokenizer.encode_special_tokens = not templated
        self.name = file.parent.name or file.name
        self.identity = hashlib.sha256(raw).hexdigest()
        # Not the number of tokens: a vocabulary may have gaps, and token files must hold every id.
        self.vocab_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        known = json.loads(raw).get("added_tokens", [])
        self._specials = [token["content"] for token in known if token.get("special")]
        if end:
            _ = self.end_of_document

    @property
    def files(self) -> tuple[Path, ...]:
        """See `Tokenizer.files`."""
        beside = (self._file.with_name(name) for name in BESIDE)
        return (self._file, *(path for path in beside if path.is_file()))

    @cached_property
    def begin_of_document(self) -> tuple[int, ...]:
        """See `Tokenizer.begin_of_document`.

        Raises:
            DataError: the end is among them, which would split every document.
        """
        probe = self._tokenizer.encode("a")
        mask = probe.special_tokens_mask  # 1 for added tokens
        begin = tuple(probe.ids[: mask.index(0) if 0 in mask else len(mask)])
        if self.end_of_document in begin:
            fix = f"--end another of its special tokens: {', '.join(self._specials)}"
            raise DataError(
                f"{self._file}: begins a text with the token that ends a document\n    fix: {fix}"
            )
        return begin

    @cached_property
    def end_of_document(self) -> int:
        """See `Tokenizer.end_of_document`; computed when needed, which streams never do.

        It must be a special token: any other may be spelled out in a text, and would end it there.
        """
        desired = [self._end] if self._end else _ENDS
        ids = (self._tokenizer.token_to_id(name) for name in desired if name in self._specials)
        end: int | None = next((name for name in ids if name is not None), None)
        if end is None:
            known = [name for name in desired if self._tokenizer.token_to_id(name) is not None]
            rule = f"has {known[0]!r}, but not as a special token: a text may hold it" if known else ""
            rule = rule or f"has not {repr(self._end) if self._end else 'a token that ends a document'}"
            fix = f"--end one of its special tokens: {', '.join(self._specials) or 'none'}"
            raise DataError(f"{self._file}: {rule}\n    fix: {fix}")
        return end

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """See `Tokenizer.encode`."""
        begin, end = list(self.begin_of_document), [self.end_of_document]
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray([*begin, *entry.ids, *end], np.uint32) for entry in encodings]

    def encode_alone(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """See `Tokenizer.encode_alone`."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=not self._templated)
        return [np.asarray(entry.ids, np.uint32) for entry in encodings]

    def placed(self, texts: Sequence[str]) -> list[tuple[NDArray[np.uint32], NDArray[np.int64]]]:
        """See `Tokenizer.placed`."""
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=not self._templated)
        return [
            (np.asarray(entry.ids, np.uint32), np.asarray(entry.offsets, np.int64).reshape(-1, 2))
            for entry in encodings
        ]


def open_tokenizer(name: str, end: str = "", templated: bool = False) -> Tokenizer:
    """Open `bytes`, or the path of a tokenizer.json; see `HuggingFace`.

    Raises:
        DataError: the file can't be used, or lacks `end`.
    """
    if name == "bytes" and end:
        fix = "leave --end out, or name a tokenizer.json by --tokenizer"
        raise DataError(f"--end {end}: bytes end a document with a token of their own\n    fix: {fix}")
    return Bytes() if name == "bytes" else HuggingFace(Path(name), end, templated)
