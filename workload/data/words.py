"""Tokenizer of a `tokenizer.json` with a cache of words, for a process with one core.

Byte-level BPE (GPT-2's, Llama 3's, Qwen's) cuts a text into words, its pre-tokens, by a regular expression
and encodes each by itself. So the tokens of a text are those of its words, in order, and most words repeat:
of source text a word costs 0.2 µs that way, 1.4 µs without. The tokenizer's own engine supplies the regular
expression and the classes of letters, digits and white space. Texts for which equality isn't certain are
encoded as a whole: those with a character beyond U+FFFF or with a token of the tokenizer's own spelled out
and, if the tokenizer has a normalizer, those that aren't ASCII.
"""

import json
import re
from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workload.data.tokenizers import HuggingFace

# ByteLevel's own pattern (tokenizers 0.23, pre_tokenizers/byte_level.rs).
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# The part of Oniguruma's language that Python's `re` shares, once classes are spelled out.
_TOKEN = re.compile(
    r"""\\p\{[A-Z][a-z]?\}|\\[sSrn]|\(\?i:['a-z|]+\)|\(\?[:!]|\[\^?|[*+?](?![+?])|\{\d+(?:,\d*)?\}(?![+?])"""
    r"""|[])|'A-Za-z0-9 /]"""
)
_ASCII, _PLANE_0 = 0x7F, 0xFFFF
_BEYOND = "\U00010000"  # in no text that is cut here
_ASTRAL = re.compile(f"[{_BEYOND}-\U0010ffff]")
_LONGEST, _MOST = 64, 2**18  # characters of a word in the cache, and words in it: some 40 MB


class CachedTokenizer(HuggingFace):
    """Tokenizer like `HuggingFace`, but on one core and each word once."""

    def __init__(self, path: Path, end: str = ""):
        """See `HuggingFace`."""
        super().__init__(path, end)
        self._words = Words.of(self._tokenizer)

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """See `Tokenizer.encode`."""
        words = self._words
        if not words:
            return super().encode(texts)
        begin, end = (
            np.array(ids, np.uint32).tobytes() for ids in (self.begin_of_document, [self.end_of_document])
        )
        encoded = [words.encode(text) for text in texts]
        whole = iter(super().encode([text for text, raw in zip(texts, encoded, strict=True) if raw is None]))
        return [
            next(whole) if raw is None else np.frombuffer(b"".join((begin, raw, end)), np.uint32)
            for raw in encoded
        ]


class Words:
    """A tokenizer's words and their tokens; see `of`."""

    def __init__(self, tokenizer: Any, pattern: str, own: Sequence[str], ascii_alone: bool):
        """Cache the words of a tokenizer that cuts by a pattern; empty at first.

        Args:
            tokenizer: of the package tokenizers.
            pattern: in Oniguruma's language; `translated` converts it to Python's.
            own: tokens that it finds in a text before cutting.
            ascii_alone: only ASCII texts are cut here.
        """
        self._pattern, self._own, self._ascii_alone = pattern, own, ascii_alone
        self._ascii = re.compile(str(translated(pattern, _ASCII)), re.ASCII)
        self._cache = _Cache(tokenizer)

    @classmethod
    def of(cls, tokenizer: Any) -> "Words | None":
        """Return a tokenizer's words; None if it isn't byte-level BPE or has unsupported steps."""
        from tokenizers import models

        model = tokenizer.model
        if not isinstance(model, models.BPE) or model.dropout:
            return None
        normalizer, pattern = _state(tokenizer.normalizer), _cut_by(_state(tokenizer.pre_tokenizer))
        if normalizer not in (None, {"type": "NFC"}) or not pattern or not translated(pattern, _ASCII):
            return None
        added = tokenizer.get_added_tokens_decoder().values()
        own = [token.content for token in added if not (token.special and tokenizer.encode_special_tokens)]
        return cls(tokenizer, pattern, own, ascii_alone=normalizer is not None)

    def encode(self, text: str) -> bytes | None:
        """Return the tokens, four bytes each; None if the text must be encoded as a whole."""
        if any(token in text for token in self._own):
            return None
        if text.isascii():
            words = self._ascii.findall(text)
        elif self._ascii_alone or _ASTRAL.search(text):
            return None
        else:
            words = self._plane_0.findall(text)
        if "".join(words) != text:  # the pattern skipped characters
            return None
        return b"".join(map(self._cache.__getitem__, words))

    @cached_property
    def _plane_0(self) -> re.Pattern[str]:
        return re.compile(str(translated(self._pattern, _PLANE_0)))


class _Cache(dict[str, bytes]):
    """Tokens by word."""

    def __init__(self, tokenizer: Any):
        from tokenizers import Tokenizer, pre_tokenizers

        super().__init__()
        self._model = tokenizer.model
        self._alone = Tokenizer(self._model)
        self._alone.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._letters = _letters(self._alone.pre_tokenizer)

    def __missing__(self, word: str) -> bytes:
        if len(word) > _LONGEST:
            return array("I", self._alone.encode(word, add_special_tokens=False).ids).tobytes()
        # Three times as fast as `encode`, but with an object for each token.
        spelled = word.encode().decode("latin-1").translate(self._letters)
        tokens = array("I", [token.id for token in self._model.tokenize(spelled)]).tobytes()
        if len(self) >= _MOST:
            self.clear()
        self[word] = tokens
        return tokens


def _letters(byte_level: Any) -> dict[int, str]:
    """Return the character that represents each byte of UTF-8 in a byte-level vocabulary."""
    letters: dict[int, str] = {}
    first = (*range(0xC0), *range(0xC0, 0x800, 0x40), 0x800, *range(0x1000, 0x10000, 0x1000))
    for code in (*first, 0x10000, 0x40000, 0x80000, 0xC0000, 0x100000):  # covers all bytes of UTF-8
        ((spelled, _),) = byte_level.pre_tokenize_str(chr(code))
        letters.update(zip(chr(code).encode(), spelled, strict=True))
    return letters


def translated(pattern: str, last: int) -> str | None:
    """Translate Oniguruma's pattern to Python's `re`, for characters up to `last`; None if it can't be."""
    parts, inside = [], False
    tokens = _TOKEN.findall(pattern)
    if "".join(tokens) != pattern:
        return None
    for token in tokens:
        if token.startswith("["):
            if inside:  # a nested set, which Python lacks
                return None
            inside = True
        elif token == "]":
            inside = False
        elif token == r"\S" and inside:
            return None
        elif token[:2] in (r"\p", r"\s", r"\S"):
            ranges = _ranges(token.lower() if token == r"\S" else token, last)
            token = ranges if inside else f"[^{ranges}]" if token == r"\S" else f"[{ranges}]"
        parts.append(token)
    with suppress(re.error):  # e.g. a repeated repeat, which only Oniguruma accepts
        return re.compile("".join(parts)).pattern
    return None


def _ranges(kind: str, last: int) -> str:
    """Return the characters up to `last` in a class of Oniguruma's, as content of a set."""
    from tokenizers import Regex, pre_tokenizers

    every = "".join(chr(code) for code in range(last + 1) if not 0xD800 <= code < 0xE000)
    runs = pre_tokenizers.Split(Regex(f"{kind}+"), "removed", invert=True).pre_tokenize_str(every)
    spelled = [f"\\U{ord(run[0]):08x}-\\U{ord(run[-1]):08x}" for run, _ in runs]
    return "".join(spelled) or _BEYOND  # no set is empty


def _cut_by(pre_tokenizer: Any) -> str | None:
    """Return the pattern that cuts words, if conversion to bytes is the only other step."""
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return _GPT2
        case {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": str(pattern)},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return pattern
    return None


def _state(part: Any) -> Any:
    return None if part is None else json.loads(part.__getstate__())
