"""Connected components by Spark: groups of documents that are similar, directly or through others.

Large-star and small-star in turn until a fixed point (Kiveris and others, "Connected Components in
MapReduce and Beyond", 2014). The result is a function of the edges alone: each node and the least
of its component.
"""

from collections.abc import Iterable, Iterator
from typing import Any

Edge = tuple[bytes, bytes]


def edges(members: Iterable[bytes]) -> Iterator[Edge]:
    """Return edges from documents that agree in a band to the least of them."""
    distinct = set(members)
    least = min(distinct)
    return ((node, least) for node in distinct if node != least)


def large_star(node: bytes, neighbours: Iterable[bytes]) -> Iterator[Edge]:
    """Return edges from each larger neighbour to the least node around."""
    around = set(neighbours)
    least = min(around | {node})
    return ((larger, least) for larger in around if larger > node)


def small_star(node: bytes, neighbours: Iterable[bytes]) -> Iterator[Edge]:
    """Return edges from each smaller neighbour, and the node, to the least of them."""
    smaller = set(neighbours) | {node}
    least = min(smaller)
    return ((neighbour, least) for neighbour in smaller if neighbour != least)


def roots(edges_rdd: Any, partitions: int) -> Any:
    """Return an RDD of (node, least of its component) without the least ones, from one of edges."""
    current, before = edges_rdd.distinct(partitions).cache(), None
    while (digest := current.map(_digest).fold((0, 0), _add)) != before:
        before, last = digest, current
        directed = current.flatMap(lambda edge: (edge, edge[::-1]))
        large = directed.groupByKey(partitions).flatMap(lambda group: large_star(*group))
        # Edges of a large star lead from the larger node to the smaller one.
        small = large.groupByKey(partitions).flatMap(lambda group: small_star(*group))
        current = small.distinct(partitions).cache()
        current.count()
        last.unpersist()
    return current


def _digest(edge: Edge) -> tuple[int, int]:
    return 1, int.from_bytes(edge[0], "big") * 3 + int.from_bytes(edge[1], "big")


def _add(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    return left[0] + right[0], (left[1] + right[1]) % 2**256
