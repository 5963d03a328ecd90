"""The function that answers whether shards are complete, against a bucket in memory."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.cloud.exceptions import Forbidden, NotFound

from infra.settings.sources import ROOT

FOLDER = "tokens/r17/0123"
SHARDS = {"tokens-0.bin": b"one", "tokens-1.bin": b"two"}


class Blob:
    def __init__(self, bucket: Bucket, name: str):
        self._bucket, self._name = bucket, name

    def _content(self) -> bytes:
        if self._name not in self._bucket.objects:
            raise NotFound(f"No such object: {self._name}")  # type: ignore[no-untyped-call]
        return self._bucket.objects[self._name]

    def download_as_bytes(self) -> bytes:
        return self._content()

    def reload(self) -> None:
        self._content()

    def open(self, mode: str, chunk_size: int) -> io.BytesIO:
        return io.BytesIO(self._content())


class Bucket:
    name = "my-bucket"

    def __init__(self, **changes: bytes | None):
        manifest = {
            "documents": 3,
            "inputs_sha256": "ab" * 32,
            "tokens": 6,
            "shards": [
                {"file": name, "tokens": 3, "sha256": hashlib.sha256(content).hexdigest()}
                for name, content in SHARDS.items()
            ],
        }
        given: dict[str, bytes | None] = {
            **SHARDS, "manifest.json": json.dumps(manifest).encode(), "_READY": b"{}", **changes
        }  # fmt: skip
        self.objects = {f"{FOLDER}/{name}": item for name, item in given.items() if item is not None}

    def blob(self, name: str) -> Blob:
        return Blob(self, name)


@pytest.fixture(scope="module", name="function")
def _function() -> ModuleType:
    path = Path(ROOT / "infra/layers/pipeline/function/main.py")
    spec = spec_from_file_location("pipeline_function", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_complete_shards_are_named_by_their_manifest(
    function: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function, "_CHUNK", 2)  # each shard is read in two parts
    bucket = Bucket()
    raw = bucket.objects[f"{FOLDER}/manifest.json"]
    assert function.answer(bucket, FOLDER) == {
        "ok": True, "manifest": hashlib.sha256(raw).hexdigest(), "inputs": "ab" * 32, "shards": 2,
        "bytes": 6, "documents": 3, "tokens": 6,
    }  # fmt: skip


@pytest.mark.parametrize(("changes", "why"), [
    ({"tokens-1.bin": None}, "gs://my-bucket/tokens/r17/0123/tokens-1.bin is missing"),
    ({"tokens-0.bin": b"One"}, "tokens-0.bin has changed: its sha256 is"),
    ({"_READY": None}, "manifest.json or _READY is missing"),
    ({"manifest.json": None}, "manifest.json or _READY is missing"),
    ({"manifest.json": b"{"}, "is no manifest"),
    ({"manifest.json": b"[]"}, "is no manifest"),
    ({"manifest.json": b"{}"}, "is no manifest"),
    ({"manifest.json": b'{"documents": 1, "tokens": 1, "shards": []}'}, "names no shard"),
])  # fmt: skip
def test_what_is_wrong_is_one_sentence(
    function: ModuleType, changes: dict[str, bytes | None], why: str
) -> None:
    result = function.answer(Bucket(**changes), FOLDER)
    assert result["ok"] is False
    assert why in result["why"]


def test_all_that_is_wrong_is_reported_at_once(function: ModuleType) -> None:
    result = function.answer(Bucket(**{"tokens-0.bin": None, "tokens-1.bin": b"2"}), FOLDER)
    assert "tokens-0.bin is missing; " in result["why"]
    assert "tokens-1.bin has changed" in result["why"]
    assert "more" not in result["why"]


def test_of_many_problems_five_are_named_and_the_others_counted(function: ModuleType) -> None:
    """All have the sha256 of what is there, but for its last digit."""
    near = {**SHARDS, **{f"tokens-{number}.bin": b"x" for number in range(2, 6)}}
    named = [(name, hashlib.sha256(content).hexdigest()) for name, content in near.items()]
    shards = [
        {"file": name, "sha256": f"{item[:-1]}{'1' if item[-1] == '0' else '0'}"} for name, item in named
    ]
    manifest = json.dumps({"documents": 1, "tokens": 1, "shards": shards}).encode()
    why = str(function.answer(Bucket(**{**near, "manifest.json": manifest}), FOLDER)["why"])
    assert why.count("has changed") == 5
    assert why.endswith("; and 1 more")


class Asked:
    def __init__(self, body: Any):
        self._body = body

    def get_json(self, *, silent: bool) -> Any:
        assert silent
        return self._body


@pytest.mark.parametrize("body", [None, [], {"bucket": "b"}, "text"])
def test_another_body_is_refused(function: ModuleType, body: Any) -> None:
    answer, status = function.check(Asked(body))
    assert (status, answer["ok"]) == (400, False)


def test_the_bucket_that_is_asked_for_is_read(function: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def bucket(self, name: str) -> Bucket:
            assert name == "my-bucket"
            return Bucket()

    monkeypatch.setattr(function.storage, "Client", Client)
    answer, status = function.check(Asked({"bucket": "my-bucket", "folder": f"{FOLDER}/"}))
    assert (status, answer["ok"]) == (200, True)


def test_what_may_not_be_read_is_refused_in_googles_words(
    function: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        def bucket(self, name: str) -> Bucket:
            raise Forbidden("check@p does not have storage.objects.get access")  # type: ignore[no-untyped-call]

    monkeypatch.setattr(function.storage, "Client", Client)
    answer, status = function.check(Asked({"bucket": "my-bucket", "folder": FOLDER}))
    assert (status, answer["error"]["code"]) == (403, 403)
    assert "check@p does not have storage.objects.get access" in answer["error"]["message"]
