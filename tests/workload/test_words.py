"""A tokenizer with a cache of words gives the tokens of one without, whatever the text."""

import json
import random
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors, trainers

from workload.data import words
from workload.data.tokenizers import HuggingFace
from workload.data.words import CachedTokenizer, Words, translated

END = "<|endoftext|>"
# Of the published tokenizer.json of Llama 3, and of o200k (tiktoken_ext/openai_public.py).
LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {"gpt2": "", "llama": LLAMA, "o200k": O200K}
# Each kind of character that a pattern tells from others, and some that two engines could see differently.
TRICKY = [
    *"aZſK1½٣ \t\n\r\v\f\x1c\x85\xa0\u2028\u200b_-'’<|/=émЖ中ǅʰ\u0301\u0e33\ufffd",
    "'s",
    "'LL",
    "\r\n",
    "  ",
]


def _cut(pattern: str) -> Any:
    if not pattern:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _sequence(behavior: str = "Isolated", invert: bool = False, use_regex: bool = False) -> dict[str, Any]:
    """As a tokenizer.json has it."""
    split = {"type": "Split", "pattern": {"Regex": LLAMA}, "behavior": behavior, "invert": invert}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}
    return {"type": "Sequence", "pretokenizers": [split, bytes_]}


def _cutting(name: str) -> tuple[tokenizers.Tokenizer, Words]:
    """A tokenizer that cuts by a pattern, without tokens, and its words."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = _cut(PATTERNS[name])
    result = Words.of(made)
    assert result
    return made, result


def _trained(pre_tokenizer: Any) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([Path(words.__file__).read_text(), *_texts(50, seed=1)], trainer)
    return made


def _texts(count: int, seed: int, length: int = 200) -> list[str]:
    drawn = random.Random(seed)
    return ["".join(drawn.choices(TRICKY, k=length)) for _ in range(count)]


def _same(folder: Path, made: tokenizers.Tokenizer, texts: list[str]) -> None:
    made.save(str(folder / "tokenizer.json"))
    for item, second in zip(
        CachedTokenizer(folder).encode(texts), HuggingFace(folder).encode(texts), strict=True
    ):
        assert item.dtype == second.dtype
        assert np.array_equal(item, second)


@pytest.mark.parametrize("name", PATTERNS)
def test_every_character_of_plane_0_is_cut_as_the_tokenizer_does(name: str) -> None:
    made, result = _cutting(name)
    letters = [chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000]
    for items in (letters[:128], *(letters[at : at + 4096] for at in range(0, len(letters), 4096))):
        text = "".join(f"a{c}b {c}{c} 1{c}'{c}\n{c}?{c} \n" for c in items)
        expected = [text[begin:end] for _, (begin, end) in made.pre_tokenizer.pre_tokenize_str(text)]
        assert result._plane_0.findall(text) == expected
        if text.isascii():
            assert result._ascii.findall(text) == expected


@pytest.mark.parametrize("name", PATTERNS)
def test_short_texts_of_ascii_are_cut_as_the_tokenizer_does(name: str) -> None:
    made, result = _cutting(name)
    for items in product("aS1 \n\r\x1c'_/", repeat=4):
        text = "".join(items)
        expected = [text[begin:end] for _, (begin, end) in made.pre_tokenizer.pre_tokenize_str(text)]
        assert result._ascii.findall(text) == expected, repr(text)


@pytest.mark.parametrize("name", PATTERNS)
def test_tokens_are_those_of_the_tokenizer(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _trained(_cut(PATTERNS[name]))
    if name == "llama":  # as Llama 3's has it
        made.model.ignore_merges = True
        made.add_special_tokens(["<|begin_of_text|>"])
        begin = ("<|begin_of_text|>", made.token_to_id("<|begin_of_text|>"))
        made.post_processor = processors.TemplateProcessing(f"{begin[0]} $A", special_tokens=[begin])
    texts = _texts(200, seed=2)
    texts += ["", "a", f"spelled {END} out", "😀 beyond", "x" * 5000, Path(__file__).read_text()]
    _same(tmp_path, made, texts)
    monkeypatch.setattr(words, "_MOST", 10)
    _same(tmp_path, made, texts)
    result = Words.of(made)
    assert result
    assert result.encode(" ".join(map(str, range(100)))) is not None
    assert 0 < len(result._cache) <= 10, "of endless text it keeps some words"


def test_texts_are_looked_up_but_where_something_else_may_decide() -> None:
    result = Words.of(_trained(_cut("")))
    assert result
    assert result.encode("a fox") is not None
    assert result.encode("ein Füchslein, 狐狸") is not None
    assert result.encode("a fox 🦊") is None
    assert result.encode(f"a {END} b") is None, "a token, unless special ones are text like any other"


def test_tokens_that_a_text_may_hold_are_found_as_before(tmp_path: Path) -> None:
    made = _trained(_cut(LLAMA))
    made.add_tokens([AddedToken("<tool>", special=False)])
    made.normalizer = normalizers.NFC()
    made.encode_special_tokens = True
    result = Words.of(made)
    assert result
    assert result.encode("a fox") is not None
    assert result.encode("a <tool> b") is None
    assert result.encode("u\u0308") is None  # NFC makes it one character
    _same(tmp_path, made, ["a <tool> b", "a<tool>", "u\u0308 fox", "a fox", "ü", f"{END}<tool>"])


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "NFKC"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {
            "pre_tokenizer": {
                "type": "ByteLevel",
                "add_prefix_space": True,
                "trim_offsets": True,
                "use_regex": True,
            }
        },
        {"pre_tokenizer": None},
        {"pre_tokenizer": _sequence(behavior="Removed")},
        {"pre_tokenizer": _sequence(invert=True)},
        {"pre_tokenizer": _sequence(use_regex=True)},
    ],
    ids=lambda change: "-".join(change),
)
def test_another_kind_of_tokenizer_encodes_as_a_whole(change: dict[str, Any], tmp_path: Path) -> None:
    known = json.loads(_trained(_cut("")).to_str()) | change
    made = tokenizers.Tokenizer.from_str(json.dumps(known))
    assert Words.of(made) is None
    _same(tmp_path, made, ["A fox in the box", "Ä"])


def test_a_tokenizer_that_draws_its_merges_has_no_cache() -> None:
    made = _trained(_cut(""))
    made.model.dropout = 0.5
    assert Words.of(made) is None


@pytest.mark.parametrize(
    "pattern",
    [r"\w+", r".", r"[a[b]]", r"a++", r"a*?", r"(a)", r"[\S]", r"a{2}+", r"a{2}{3}", r"(?<=a)b", r"[a&&b]"],
)
def test_what_two_languages_may_read_differently_is_not_translated(pattern: str) -> None:
    assert translated(pattern, 0x7F) is None


def test_what_lies_between_words_is_not_lost() -> None:
    made = _trained(_cut(r"\p{L}+"))
    result = Words.of(made)
    assert result
    assert result.encode("fox") is not None
    assert result.encode("a fox") is None
