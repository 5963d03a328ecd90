"""When documents are the same, when alike, and which are alike through others."""

import random
from itertools import pairwise

from tests.workload.preprocess import corpus
from workload.preprocess import components, similarity


def alike(one: str, other: str) -> bool:
    first, second = (similarity.bands(text, 5, 14, 8) for text in (one, other))
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
    assert not any(alike(one, other) for one, other in pairwise(texts))


def test_short_texts_and_texts_without_words_have_signatures() -> None:
    for text in ("one", "!?", "日本語"):
        assert len(similarity.bands(text, 5, 14, 8)) == 14
    assert alike("日本語の文", "日本語の文")


class _Rdd:
    """What of Spark's RDD `roots` asks for, in one list."""

    def __init__(self, items: list) -> None:  # type: ignore[type-arg]
        self.items = items

    def distinct(self, _: int) -> "_Rdd":
        return _Rdd(sorted(set(self.items)))

    def cache(self) -> "_Rdd":
        return self

    def unpersist(self) -> None: ...

    def count(self) -> int:
        return len(self.items)

    def map(self, function) -> "_Rdd":  # type: ignore[no-untyped-def]
        return _Rdd([function(item) for item in self.items])

    def flatMap(self, function) -> "_Rdd":  # type: ignore[no-untyped-def]  # noqa: N802
        return _Rdd([made for item in self.items for made in function(item)])

    def fold(self, zero, function):  # type: ignore[no-untyped-def]
        for item in self.items:
            zero = function(zero, item)
        return zero

    def groupByKey(self, _: int) -> "_Rdd":  # noqa: N802
        grouped: dict[bytes, list[bytes]] = {}
        for key, value in self.items:
            grouped.setdefault(key, []).append(value)
        return _Rdd(list(grouped.items()))


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

    for one, other in edges:
        low, high = sorted((find(one), find(other)))
        root[high] = low
    expected = {(node, find(node)) for node in nodes if find(node) != node}
    assert set(components.roots(_Rdd(edges), 1).items) == expected
    assert len(expected) > 200


def test_edges_of_a_band_lead_to_the_least_of_it() -> None:
    assert sorted(components.edges([b"b", b"c", b"a", b"b"])) == [(b"b", b"a"), (b"c", b"a")]
    assert list(components.edges([b"b", b"b"])) == []
