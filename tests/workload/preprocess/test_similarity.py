"""Equal documents, similar ones, and those similar through others."""

import random
from itertools import pairwise

import numpy as np
import pytest

from tests.workload.preprocess import corpus
from tests.workload.preprocess.in_memory import Rdd
from workload.preprocess import components, similarity


def alike(text: str, other: str) -> bool:
    first, second = (similarity.bands(text, 5, 14, 8) for text in (text, other))
    return any(a == b for a, b in zip(first, second, strict=True))


def test_the_same_text_is_the_same_in_other_white_space_and_another_normal_form() -> None:
    assert similarity.key("a  gr\u00fc\u00dfe\n") == similarity.key("a gru\u0308\u00dfe")
    assert similarity.key("a b") != similarity.key("ab")
    assert len(similarity.key("")) == 32


def test_documents_that_share_most_shingles_agree_in_a_band_and_others_in_none() -> None:
    texts = corpus.texts(30, seed=11, words=400)
    for text in texts:
        words = text.split()
        words[200] = "changed"  # 5 of 400 shingles are others
        assert alike(text, " ".join(words))
    assert not any(alike(item, second) for item, second in pairwise(texts))


def test_equal_minima_in_two_bands_give_two_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents meet by their keys alone, so those that agree across bands must not."""
    monkeypatch.setattr(similarity, "_permutations", lambda count: [(np.uint64(1), np.uint64(0))] * count)
    assert len(set(similarity.bands("words of a text", 2, 14, 8))) == 14


def test_short_texts_and_texts_without_words_have_signatures() -> None:
    for text in ("one", "!?", "日本語"):
        assert len(similarity.bands(text, 5, 14, 8)) == 14
    assert alike("日本語の文", "日本語の文")


def test_components_are_those_of_the_graph_with_their_least_as_root() -> None:
    draw = random.Random(3)
    nodes = [number.to_bytes(2, "big") for number in range(400)]
    long = list(pairwise(draw.sample(nodes[:120], 120)))  # a chain, the worst for stars
    edges = [(max(pair), min(pair)) for pair in long]
    edges += [(max(pair), min(pair)) for pair in (draw.sample(nodes[120:], 2) for _ in range(150))]
    root = {node: node for node in nodes}

    def find(node: bytes) -> bytes:
        while root[node] != node:
            node = root[node]
        return node

    for item, second in edges:
        low, high = sorted((find(item), find(second)))
        root[high] = low
    expected = {(node, find(node)) for node in nodes if find(node) != node}
    assert set(components.roots(Rdd.of(edges, 3), 2).collect()) == expected
    assert len(expected) > 200


def test_edges_of_a_band_lead_to_the_least_of_it() -> None:
    assert sorted(components.edges([b"b", b"c", b"a", b"b"])) == [(b"b", b"a"), (b"c", b"a")]
    assert list(components.edges([b"b", b"b"])) == []
