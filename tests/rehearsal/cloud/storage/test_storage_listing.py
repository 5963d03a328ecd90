"""Listings, against a model that filters a plain list of names."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from storage_front import Front, object_path

from rehearsal.cloud.core.clock import VirtualClock
from rehearsal.cloud.services.storage.blobs import Blob, BlobStore
from rehearsal.cloud.services.storage.limits import MutationLimit
from rehearsal.cloud.services.storage.listing import list_page
from rehearsal.cloud.services.storage.versions import Objects

_names = st.text(alphabet="ab/é", min_size=1, max_size=6)


class _NoBlobs(BlobStore):
    """Counts nothing: listings never look at content."""

    def __init__(self) -> None:
        super().__init__(Path())

    def release(self, blob: Blob) -> None:
        pass


def objects_of(names: list[str], *, versioned: bool = False) -> Objects:
    config: dict[str, Any] = {"versioning": {"enabled": versioned}}
    numbers = iter(range(1, 1_000_000))
    limit = MutationLimit(count(step=60).__next__)
    objects = Objects("b", lambda: config, _NoBlobs(), VirtualClock(), lambda: next(numbers), limit)
    for name in names:
        objects.write(name, Blob("x", 0, "", None), {})
    return objects


def pages(objects: Objects, **query: Any) -> tuple[list[str], list[str]]:
    """All names and prefixes, page after page."""
    names: list[str] = []
    prefixes: list[str] = []
    token = None
    while True:
        page = list_page(objects, {**query, "pageToken": token})
        names += [version.name for version in page.versions]
        prefixes += page.prefixes
        if page.next_token is None:
            return names, prefixes
        assert len(page.versions) + len(page.prefixes) == query["maxResults"]
        token = page.next_token


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    names=st.sets(_names, max_size=12),
    prefix=st.text(alphabet="ab/", max_size=3),
    delimiter=st.sampled_from(["", "/", "a", "//"]),
    start=st.text(alphabet="ab/", max_size=3),
    end=st.text(alphabet="ab/", max_size=3),
    limit=st.integers(1, 5),
)
def test_a_listing_is_the_filter_it_claims_to_be(
    names: set[str], prefix: str, delimiter: str, start: str, end: str, limit: int
) -> None:
    matching = sorted(n for n in names if n.startswith(prefix) and n >= start and (not end or n < end))
    items, folders = [], []
    for name in matching:
        at = name.find(delimiter, len(prefix)) if delimiter else -1
        if at < 0:
            items.append(name)
        elif (folder := name[: at + len(delimiter)]) not in folders:
            folders.append(folder)
    result = pages(
        objects_of(sorted(names)),
        prefix=prefix,
        delimiter=delimiter,
        startOffset=start,
        endOffset=end,
        maxResults=limit,
    )
    assert result == (items, folders)


@settings(max_examples=100, deadline=None)
@given(writes=st.lists(st.sampled_from(["a", "b", "c/d"]), max_size=12), limit=st.integers(1, 4))
def test_every_generation_is_listed_once_and_in_order(writes: list[str], limit: int) -> None:
    objects = objects_of(writes, versioned=True)
    result: list[tuple[str, int]] = []
    token = None
    while True:
        page = list_page(objects, {"versions": True, "maxResults": limit, "pageToken": token})
        result += [(version.name, version.generation) for version in page.versions]
        token = page.next_token
        if token is None:
            break
    assert result == sorted((name, number) for number, name in enumerate(writes, start=1))


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("*.txt", ["a.txt"]),
        ("**.txt", ["a.txt", "dir/b.txt", "dir/deep/c.txt"]),
        ("dir/*.txt", ["dir/b.txt"]),
        ("dir/**", ["dir/b.txt", "dir/deep/c.txt", "dir/x.bin"]),
        ("dir/?.{txt,bin}", ["dir/b.txt", "dir/x.bin"]),
        ("[!d]*", ["a.txt"]),
    ],
)
def test_globs(front: Front, bucket: str, glob: str, names: list[str]) -> None:
    for name in ("a.txt", "dir/b.txt", "dir/x.bin", "dir/deep/c.txt"):
        front.put(bucket, name, b"x")
    result = front.request("GET", f"b/{bucket}/o", matchGlob=glob).json.get("items", [])
    assert [item["name"] for item in result] == names


def test_trailing_delimiters_and_fields(front: Front, bucket: str) -> None:
    for name in ("dir/", "dir/a", "file"):
        front.put(bucket, name, b"x")
    plain = front.request("GET", f"b/{bucket}/o", delimiter="/", fields="prefixes,items(name)").json
    assert plain == {"prefixes": ["dir/"], "items": [{"name": "file"}]}
    both = front.request("GET", f"b/{bucket}/o", delimiter="/", includeTrailingDelimiter=True).json
    assert [item["name"] for item in both["items"]] == ["dir/", "file"]


@pytest.mark.parametrize(
    "query",
    [
        {"pageToken": "not a token"},
        {"matchGlob": "{a"},
        {"includeFoldersAsPrefixes": True},
        {"maxResults": "many"},
    ],
)
def test_refusals(front: Front, bucket: str, query: dict[str, Any]) -> None:
    assert front.request("GET", f"b/{bucket}/o", **query).status == 400


def test_a_removed_name_is_gone_from_listings(front: Front, new_bucket: Callable[..., str]) -> None:
    bucket = new_bucket(versioning={"enabled": True})
    front.put(bucket, "dir/a", b"x")
    front.request("DELETE", object_path(bucket, "dir/a"))
    assert front.request("GET", f"b/{bucket}/o", delimiter="/").json == {"kind": "storage#objects"}
    assert front.request("GET", f"b/{bucket}/o", delimiter="/", versions=True).json["prefixes"] == ["dir/"]
