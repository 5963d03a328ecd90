"""Token files: the same bytes each time, every token where it belongs."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from workload.data.prepare import END_OF_DOCUMENT, prepare
from workload.data.tokens import Dataset, Manifest
from workload.errors import DataError


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Four files: two texts, one of them twice, and one that is no text."""
    folder = tmp_path / "text"
    (folder / "b").mkdir(parents=True)
    (folder / "a.txt").write_text("grüße")
    (folder / "b" / "c.txt").write_text("abc")
    (folder / "b" / "again.txt").write_text("abc")
    (folder / "b" / "picture").write_bytes(b"\x89PNG\0\xff")
    return folder


def test_prepare_packs_documents_in_the_order_of_their_paths(text: Path, tmp_path: Path) -> None:
    summary = prepare([text], tmp_path / "out")
    assert (summary.documents, summary.not_text, summary.repeated) == (2, 1, 1)
    expected = [*"grüße".encode(), END_OF_DOCUMENT, *b"abc", END_OF_DOCUMENT]
    assert np.fromfile(tmp_path / "out" / "tokens-00000.bin", "<u2").tolist() == expected
    assert summary.tokens == len(expected)


def test_prepare_is_deterministic_and_says_what_it_wrote(text: Path, tmp_path: Path) -> None:
    for out in ("one", "two"):
        prepare([text], tmp_path / out, shard_tokens=4)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["manifest.json", "tokens-00000.bin", "tokens-00001.bin", "tokens-00002.bin"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    manifest = json.loads((tmp_path / "one" / "manifest.json").read_text())
    assert manifest["tokens"] == sum(shard["tokens"] for shard in manifest["shards"]) == 12
    for shard in manifest["shards"]:
        raw = (tmp_path / "one" / shard["file"]).read_bytes()
        assert hashlib.sha256(raw).hexdigest() == shard["sha256"]
        assert len(raw) == 2 * shard["tokens"] <= 8


def test_every_token_but_the_first_of_a_shard_is_a_target_once(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(bytes(range(1, 101)))
    prepare([tmp_path / "text"], tmp_path / "out", shard_tokens=41)
    dataset = Dataset(tmp_path / "out", sequence_length=10)
    # Shards of 41, 41 and 19 tokens hold 4, 4 and 1 windows of 11, 10 apart.
    assert len(dataset) == 9
    windows = dataset.read(np.arange(9))
    assert windows.shape == (9, 11)
    assert windows.dtype == np.int32
    targets = windows[:, 1:].ravel().tolist()
    assert targets == [*range(2, 42), *range(43, 83), *range(84, 94)]


def test_prepare_refuses(text: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no such file or folder"):
        prepare([tmp_path / "nowhere"], tmp_path / "out")
    with pytest.raises(DataError, match="is there and not empty"):
        prepare([text], text)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no UTF-8 text"):
        prepare([tmp_path / "empty"], tmp_path / "out")


def test_a_damaged_folder_is_refused(tokens: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"manifest.json: can't be read: No such file"):
        Manifest.read(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="is not a manifest"):
        Manifest.read(tmp_path)
    (tmp_path / "manifest.json").write_bytes((tokens / "manifest.json").read_bytes())
    with pytest.raises(DataError, match=r"tokens-00000.bin: is missing"):
        Manifest.read(tmp_path)
    raw = (tokens / "tokens-00000.bin").read_bytes()
    (tmp_path / "tokens-00000.bin").write_bytes(raw[:-2])
    with pytest.raises(DataError, match=f"has {len(raw) - 2} bytes, the manifest says {len(raw)}"):
        Manifest.read(tmp_path)


def test_too_little_text_is_refused(text: Path, tmp_path: Path) -> None:
    prepare([text], tmp_path / "out")
    with pytest.raises(DataError, match="12 tokens hold no example of 65"):
        Dataset(tmp_path / "out", sequence_length=64)
