"""Equality and similarity of documents.

Equal: their normalised texts have the same SHA-256. Similar: by MinHash with bands (Broder, "On the
resemblance and containment of documents", 1997): two documents that share the fraction s of their shingles
agree in some band with probability 1 - (1 - s^band_hashes)^bands. All constants come from SHA-256, so that a
signature is a function of the text alone.
"""

import hashlib
import re
import unicodedata
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
# Scripts written without spaces, where a character counts as a word: Thai, kana, Han.
_UNSPACED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
_AT_ONCE = 2**16  # shingles whose hashes fit the processor's cache


def normalised(text: str) -> str:
    """Return the text in NFC, with single spaces for white space; equal documents agree in it."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def key(text: str) -> bytes:
    """Return the SHA-256 of the normalised text: a document's identity, which selects its shard."""
    return hashlib.sha256(normalised(text).encode()).digest()


def bands(text: str, ngram_words: int, bands: int, band_hashes: int) -> list[bytes]:
    """Return a hash for each band of the text's MinHash signature, 8 bytes each, distinct between bands."""
    shingles = _shingles(text, ngram_words)
    least = np.full(bands * band_hashes, 2**64 - 1, np.uint64)
    for start in range(0, len(shingles), _AT_ONCE):
        chunk = shingles[start : start + _AT_ONCE]
        for number, (factor, addend) in enumerate(_permutations(bands * band_hashes)):
            least[number] = min(least[number], (chunk * factor + addend).min())
    digests = [
        hashlib.sha256(band.to_bytes(2, "little") + least[band * band_hashes :][:band_hashes].tobytes())
        for band in range(bands)
    ]
    return [digest.digest()[:8] for digest in digests]


def _shingles(text: str, ngram_words: int) -> Words:
    """Return hashes of each run of `ngram_words` words; of all words if there are fewer."""
    folded = normalised(text).casefold()
    words = np.array([_hash(word) for word in _WORD.findall(folded) or [folded]], np.uint64)
    length = min(ngram_words, len(words))
    mixed = np.zeros(len(words) - length + 1, np.uint64)
    for place in range(length):
        mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + words[place : place + len(mixed)]
    # The end of SplitMix64 (Steele and others, 2014): every bit of a word reaches the upper ones.
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.unique(mixed ^ (mixed >> np.uint64(31)))


@lru_cache(2**18)
def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


@cache
def _permutations(count: int) -> list[tuple[np.uint64, np.uint64]]:
    """Return an odd factor and an addend each: x → factor · x + addend mod 2^64 permutes the hashes."""
    drawn = [hashlib.sha256(f"minhash {number}".encode()).digest() for number in range(count)]
    pairs = [
        (int.from_bytes(digest[:8], "little") | 1, int.from_bytes(digest[8:16], "little")) for digest in drawn
    ]
    return [(np.uint64(factor), np.uint64(addend)) for factor, addend in pairs]
