"""Connected components by Spark: which documents are alike, directly or through others.

Large-star and small-star in turn until nothing changes (Kiveris and others, "Connected Components in
MapReduce and Beyond", 2014). The result is a function of the edges alone: each node and the least
of its component.
"""

from collections.abc import Iterable, Iterator
from typing import Any

Edge = tuple[bytes, bytes]


def edges(members: Iterable[bytes]) -> Iterator[Edge]:
    """Of documents that agree in a band, each with the least of them."""
    distinct = set(members)
    least = min(distinct)
    return ((node, least) for node in distinct if node != least)


def large_star(node: bytes, neighbours: Iterable[bytes]) -> Iterator[Edge]:
    """Each larger neighbour with the least node around."""
    around = set(neighbours)
    least = min(around | {node})
    return ((other, least) for other in around if other > node)


def small_star(node: bytes, neighbours: Iterable[bytes]) -> Iterator[Edge]:
    """Each smaller neighbour, and the node, with the least of them."""
    smaller = set(neighbours) | {node}
    least = min(smaller)
    return ((other, least) for other in smaller if other != least)


def roots(found: Any, partitions: int) -> Any:
    """An RDD of (node, least of its component) without the least ones, from one of edges."""
    current, before = found.distinct(partitions).cache(), None
    while (digest := current.map(_digest).fold((0, 0), _add)) != before:
        before, last = digest, current
        both = current.flatMap(lambda edge: (edge, edge[::-1]))
        large = both.groupByKey(partitions).flatMap(lambda one: large_star(*one))
        # An edge of a large star leads from the larger node to the smaller one.
        small = large.groupByKey(partitions).flatMap(lambda one: small_star(*one))
        current = small.distinct(partitions).cache()
        current.count()
        last.unpersist()
    return current


def _digest(edge: Edge) -> tuple[int, int]:
    return 1, int.from_bytes(edge[0], "big") * 3 + int.from_bytes(edge[1], "big")


def _add(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], (one[1] + other[1]) % 2**256
