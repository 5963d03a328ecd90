"""Answers whether the shards of a run are complete: every one of the manifest there, with its sha256.

Takes {"bucket", "folder"}; answers {"ok": true, "manifest", "inputs", "documents", "tokens", "shards",
"bytes"}, the first two by their sha256, or {"ok": false, "why"} with all that is wrong, and with 403 where it
may not read. It writes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from google.cloud import storage
from google.cloud.exceptions import Forbidden, NotFound

MANIFEST, READY = "manifest.json", "_READY"
_AT_ONCE, _CHUNK = 8, 8 << 20
_MOST_NAMED = 5


class Request(Protocol):
    """The used part of Flask's request."""

    def get_json(self, *, silent: bool) -> Any:
        """Return the body; None where it isn't JSON."""


def check(request: Request) -> tuple[dict[str, Any], int]:
    """Return the HTTP target."""
    body = request.get_json(silent=True)
    if not isinstance(body, dict) or not {"bucket", "folder"} <= body.keys():
        return {"ok": False, "why": 'the body must be {"bucket": …, "folder": …}'}, 400
    try:
        return answer(storage.Client().bucket(body["bucket"]), str(body["folder"]).rstrip("/")), 200
    except Forbidden as error:  # as Google's own APIs refuse: the caller names the role
        return {"error": {"code": 403, "message": str(error)}}, 403


def answer(bucket: storage.Bucket, folder: str) -> dict[str, Any]:
    """Return the counts of complete shards, or their problems."""
    where = f"gs://{bucket.name}/{folder}"
    try:
        raw = bucket.blob(f"{folder}/{MANIFEST}").download_as_bytes()
        bucket.blob(f"{folder}/{READY}").reload()
    except NotFound as error:
        return _wrong([f"{where}: {MANIFEST} or {READY} is missing: {error.message}"])
    try:
        manifest = json.loads(raw)
        shards = [(str(shard["file"]), str(shard["sha256"])) for shard in manifest["shards"]]
        totals = {key: int(manifest[key]) for key in ("documents", "tokens")}
        inputs = str(manifest.get("inputs_sha256", ""))
    except (ValueError, KeyError, TypeError) as error:
        return _wrong([f"{where}/{MANIFEST}: is no manifest: {error!r}"])
    if not shards:
        return _wrong([f"{where}/{MANIFEST}: names no shard"])
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        read = list(pool.map(lambda shard: _hashed(bucket, f"{folder}/{shard[0]}"), shards))
    problems = list(_problems(where, shards, read))
    if problems:
        return _wrong(problems)
    size = sum(number for _, number in read)
    sha256 = hashlib.sha256(raw).hexdigest()
    return {"ok": True, "manifest": sha256, "inputs": inputs, "shards": len(shards), "bytes": size, **totals}


def _hashed(bucket: storage.Bucket, name: str) -> tuple[str, int]:
    """Return the sha256 and the size of an object; empty for one that isn't there."""
    digest, size = hashlib.sha256(), 0
    try:
        with bucket.blob(name).open("rb", chunk_size=_CHUNK) as file:
            while block := file.read(_CHUNK):
                digest.update(block)
                size += len(block)
    except NotFound:
        return "", 0
    return digest.hexdigest(), size


def _problems(where: str, shards: list[tuple[str, str]], read: list[tuple[str, int]]) -> Iterator[str]:
    for (name, sha256), (actual, _) in zip(shards, read, strict=True):
        if not actual:
            yield f"{where}/{name} is missing"
        elif actual != sha256:
            yield f"{where}/{name} has changed: its sha256 is {actual[:12]}…, the manifest's {sha256[:12]}…"


def _wrong(problems: list[str]) -> dict[str, Any]:
    more = len(problems) - _MOST_NAMED
    listed = "; ".join(problems[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
    return {"ok": False, "why": listed}
