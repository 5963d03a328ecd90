"""Token files: the same bytes each time, every token where it belongs."""

import errno
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from workload.__main__ import main
from workload.data.prepare import prepare
from workload.data.tokenizers import Bytes, HuggingFace, open_tokenizer
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
    assert (summary.documents, summary.repeated) == (2, 1)
    assert summary.rejected == {"is no UTF-8 text": 1}
    expected = [*"grüße".encode(), Bytes.end_of_document, *b"abc", Bytes.end_of_document]
    assert np.fromfile(tmp_path / "out" / "tokens-00000.bin", "<u2").tolist() == expected
    assert summary.tokens == len(expected)


def test_prepare_is_deterministic_and_says_what_it_wrote(text: Path, tmp_path: Path) -> None:
    for out in ("one", "two"):
        prepare([text], tmp_path / out, shard_tokens=4)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["manifest.json", "rejected.jsonl", *(f"tokens-0000{n}.bin" for n in range(3))]
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


@pytest.mark.parametrize(("tokens", "windows"), [(29, 2), (30, 2), (31, 3)])
def test_a_window_needs_one_token_more_than_it_has_targets(tmp_path: Path, tokens: int, windows: int) -> None:
    (tmp_path / "text").write_bytes(bytes(range(1, tokens)))  # and the token that ends the document
    prepare([tmp_path / "text"], tmp_path / "out")
    dataset = Dataset(tmp_path / "out", sequence_length=10)
    assert len(dataset) == windows
    read = dataset.read(np.arange(windows))
    assert read[:, 0].tolist() == [*range(1, 10 * windows, 10)]
    assert read[-1, -1] in (10 * windows + 1, 256)


def test_prepare_refuses(text: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no such file or folder"):
        prepare([tmp_path / "nowhere"], tmp_path / "out")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(DataError, match="is there and not empty"):
        prepare([text], tmp_path / "taken")
    with pytest.raises(DataError, match=r"lies in --source .*, and would be read"):
        prepare([text], text / "out")
    with pytest.raises(DataError, match=r"can't be written: Not a directory\n    fix: make room"):
        prepare([text], text / ".." / "taken" / "file" / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no UTF-8 text in 0 files"):
        prepare([tmp_path / "empty"], tmp_path / "out")
    (tmp_path / "empty" / "picture").write_bytes(b"\x89PNG\0\xff")
    with pytest.raises(DataError, match="holds no UTF-8 text in 1 file: 1 × is no UTF-8 text"):
        prepare([tmp_path / "empty"], tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to("/proc/self/mem")  # refuses even root
    with pytest.raises(DataError, match=rf"{name}: can't be read: .*\n    fix: "):
        prepare([tmp_path / name], tmp_path / "out")


def test_a_folder_that_cannot_be_looked_into_is_not_passed_over(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Path.iterdir

    def refusing(folder: Path) -> Iterator[Path]:
        if folder.name == "b":
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return iter(list(plain(folder)))

    monkeypatch.setattr(Path, "iterdir", refusing)
    with pytest.raises(DataError, match=r"text/b: can't be read: Permission denied"):
        prepare([text], tmp_path / "out")


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


def tokenizer_json(folder: Path) -> Path:
    """A tokenizer of words, trained on nothing but what the tests use."""
    import tokenizers
    from tokenizers import models, pre_tokenizers

    text = "the quick brown fox jumps over a lazy dog < | end _ of text >"
    words = ["[UNK]", "<|end_of_text|>", *text.split()]
    model = models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["<|end_of_text|>"])
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_a_tokenizer_json_and_json_lines(tmp_path: Path) -> None:
    folder = tokenizer_json(tmp_path / "words")
    lines = [
        {"body": "the quick fox"},
        {"body": ""},
        {"body": None},
        {"body": "a dog"},
        {"body": "the quick fox"},
    ]
    source = tmp_path / "documents.jsonl"
    source.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    summary = prepare([source], tmp_path / "out", open_tokenizer(str(folder)), "body")
    assert (summary.documents, summary.repeated, summary.tokens) == (2, 1, 7)
    assert np.fromfile(tmp_path / "out" / "tokens-00000.bin", "<u2").tolist() == [2, 3, 5, 1, 8, 10, 1]
    manifest = Manifest.read(tmp_path / "out")
    raw = (folder / "tokenizer.json").read_bytes()
    assert manifest.tokenizer_sha256 == hashlib.sha256(raw).hexdigest()
    assert (manifest.tokenizer, manifest.end_of_document) == ("words", 1)


def test_a_summary_names_twenty_rejected_files_and_counts_all(text: Path, tmp_path: Path) -> None:
    for number in range(20):
        (text / f"{number}.png").write_bytes(b"\x89PNG\0\xff")
    summary = prepare([text], tmp_path / "out")
    assert (len(summary.passed_over), summary.rejected) == (20, {"is no UTF-8 text": 21})


def test_a_special_token_spelled_out_in_a_text_is_text(tmp_path: Path) -> None:
    tokenizer = HuggingFace(tokenizer_json(tmp_path / "words"))
    (tokens,) = tokenizer.encode(["the <|end_of_text|> fox"])
    assert (tokens == tokenizer.end_of_document).nonzero()[0].tolist() == [len(tokens) - 1]


def test_parquet_rows_are_documents(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = [f"document {i} of many" for i in range(3000)]
    parquet.write_table(pyarrow.table({"text": rows, "id": range(3000)}), tmp_path / "rows.parquet")
    assert prepare([tmp_path / "rows.parquet"], tmp_path / "out").documents == 3000
    first = np.fromfile(tmp_path / "out" / "tokens-00000.bin", "<u2")[: len(rows[0])]
    assert bytes(first.tolist()).decode() == rows[0]
    with pytest.raises(DataError, match=r"has no column 'body'\n    fix: --field one of text, id"):
        prepare([tmp_path / "rows.parquet"], tmp_path / "other", field_name="body")
    with pytest.raises(DataError, match=r"row 0: has no text in 'id'\n    fix: mend it"):
        prepare([tmp_path / "rows.parquet"], tmp_path / "other", field_name="id")
    raw = (tmp_path / "rows.parquet").read_bytes()
    (tmp_path / "torn.parquet").write_bytes(raw[:100] + bytes(8000) + raw[8100:])
    with pytest.raises(DataError, match=r"torn.parquet: (can't be read|is not Parquet): .*\n    fix: "):
        prepare([tmp_path / "torn.parquet"], tmp_path / "other")


@pytest.mark.parametrize(
    ("content", "end", "message"),
    [
        (None, "", "can't be read: No such file"),
        ("{}", "", "is not a tokenizer.json"),
        ("words", "<stop>", r"has not '<stop>'\n    fix: --end one of its special tokens: <\|end_of_text"),
    ],
)
def test_bad_tokenizers_are_refused(tmp_path: Path, content: str | None, end: str, message: str) -> None:
    folder = tmp_path / "words"
    if content == "words":
        tokenizer_json(folder)
    elif content is not None:
        folder.mkdir()
        (folder / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=message):
        open_tokenizer(str(folder), end)


@pytest.mark.parametrize("what", [("truncation",), ("padding",), ("truncation", "padding")])
def test_a_tokenizer_that_would_cut_or_pad_is_refused(tmp_path: Path, what: tuple[str, ...]) -> None:
    import tokenizers

    file = tokenizer_json(tmp_path / "words") / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    if "truncation" in what:
        tokenizer.enable_truncation(16)
    if "padding" in what:
        tokenizer.enable_padding()
    tokenizer.save(str(file))
    with pytest.raises(DataError, match=rf"tokenizer.json: has {' and '.join(what)}, .*\n    fix: set"):
        open_tokenizer(str(file))


def test_streams_need_no_end_of_document_and_token_files_do(text: Path, tmp_path: Path) -> None:
    folder = tokenizer_json(tmp_path / "words")
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace("<|end_of_text|>", "<stop>"))
    source = tmp_path / "fox.txt"
    source.write_text("the quick fox")
    arguments = ["--source", str(source), "--tokenizer", str(folder), "--out", str(tmp_path / "streams")]
    assert main(["data", "streams", *arguments]) == 0
    with pytest.raises(
        DataError, match=r"has not a token that ends a document\n    fix: --end one of .*<stop>"
    ):
        prepare([text], tmp_path / "out", open_tokenizer(str(folder)))
    assert not (tmp_path / "out").exists()


def test_bytes_have_their_own_end() -> None:
    with pytest.raises(DataError, match=r"--end <stop>: bytes end a document with a token of their own"):
        open_tokenizer("bytes", "<stop>")


def test_a_vocabulary_with_gaps_finds_room_for_its_largest_token(tmp_path: Path) -> None:
    folder = tokenizer_json(tmp_path / "words")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["fox"] = 70_000
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "text").write_text("the fox")
    prepare([tmp_path / "text"], tmp_path / "out", open_tokenizer(str(folder)))
    manifest = Manifest.read(tmp_path / "out")
    assert manifest.vocab_size == 70_001
    assert np.fromfile(tmp_path / "out" / "tokens-00000.bin", manifest.dtype).tolist() == [2, 70_000, 1]


def test_half_a_character_of_json_becomes_a_mark(tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_text('{"text": "a\\ud800b\\ud83d\\ude00"}\n')
    prepare([tmp_path / "lines.jsonl"], tmp_path / "out")
    tokens = np.fromfile(tmp_path / "out" / "tokens-00000.bin", "<u2")[:-1]
    assert bytes(tokens.tolist()).decode() == "a\ufffdb😀"


def test_a_disk_that_fills_up_at_the_manifest_loses_no_shard(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_text

    def full(path: Path, content: str) -> int:
        if "manifest" in path.name:
            write(path, content[:5])
            raise OSError(28, "No space left on device")
        return write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(DataError, match="No space left on device\n    fix: make room, or"):
            prepare([text], tmp_path / "out")
    prepare([text], tmp_path / "out")
    assert Manifest.read(tmp_path / "out").documents == 2
    assert not list((tmp_path / "out").glob(".*"))


def with_begin(folder: Path) -> Path:
    """The tokenizer of words as Llama's is: what a model is given begins with a token of its own."""
    import tokenizers
    from tokenizers import processors

    made = tokenizers.Tokenizer.from_file(str(tokenizer_json(folder) / "tokenizer.json"))
    made.add_special_tokens(["<|begin_of_text|>"])
    begin = made.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)]
    )
    made.post_processor = template
    made.save(str(folder / "tokenizer.json"))
    return folder


def test_documents_begin_as_the_model_is_given_them(tmp_path: Path) -> None:
    tokenizer = HuggingFace(with_begin(tmp_path / "words"))
    begin, end = 18, tokenizer.end_of_document
    texts = ["the quick fox", "a dog"]
    for alone, document in zip(tokenizer.encode_alone(texts), tokenizer.encode(texts), strict=True):
        assert [*alone, end] == document.tolist()
    source = tmp_path / "documents.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    prepare([source], tmp_path / "out", tokenizer)
    tokens = np.fromfile(tmp_path / "out" / "tokens-00000.bin", "<u2").tolist()
    assert tokens == [begin, 2, 3, 5, end, begin, 8, 10, end]
    manifest = Manifest.read(tmp_path / "out")
    assert manifest.begin_of_document == (begin,)
    given = (tmp_path / "words" / "tokenizer.json").read_bytes()
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == given


def test_an_end_that_a_text_may_hold_is_refused(tmp_path: Path) -> None:
    folder = tokenizer_json(tmp_path / "words")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"][0]["special"] = False
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"has '<\|end_of_text\|>', but not as a special token: a text may"):
        _ = HuggingFace(folder).end_of_document


def test_a_tokenizer_that_begins_with_its_end_is_refused(tmp_path: Path) -> None:
    folder = with_begin(tmp_path / "words")
    with pytest.raises(DataError, match="begins a text with the token that ends a document"):
        HuggingFace(folder, "<|begin_of_text|>").encode(["a fox"])


class InterruptedHereError(Exception):
    """Stands for a kill."""


class Failing(Bytes):
    """Breaks off after some documents."""

    def __init__(self, documents: int):
        self.left = documents

    def encode(self, texts: list[str]) -> list[np.ndarray]:  # type: ignore[override]
        self.left -= len(texts)
        if self.left < 0:
            raise InterruptedHereError
        return super().encode(texts)


def test_prepare_resumes_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workload.data.prepare._BATCH_CHARACTERS", 500)
    source = tmp_path / "documents.jsonl"
    texts = [f"{i} " * (i % 37 + 1) for i in range(400)]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    prepare([source], tmp_path / "whole", shard_tokens=700)
    out = tmp_path / "pieces"
    starts = 0
    for documents in (80, 100, 120):
        with pytest.raises(InterruptedHereError):
            prepare([source], out, Failing(documents), shard_tokens=700)
        starts += 1
        assert not (out / "manifest.json").exists()
        (out / "tokens-99999.bin").write_bytes(b"half a shard")
        progress = json.loads((out / "unfinished.json").read_text())
        assert progress["shards"]
        for name in ("longest", "cut"):  # as by a version that knew no conversations
            del progress[name]
        (out / "unfinished.json").write_text(json.dumps(progress))
    output: list[str] = []
    prepare([source], out, shard_tokens=700, progress=output.append)
    assert starts == 3
    assert "resumes after" in output[0]
    written = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert {path.name: path.read_bytes() for path in out.iterdir()} == written
    assert len(written) > 5
    with pytest.raises(DataError, match="is there and not empty"):
        prepare([source], out, shard_tokens=700)


def test_prepare_resumes_where_a_shard_ends_with_a_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workload.data.prepare._BATCH_CHARACTERS", 9)  # a document a batch
    source = tmp_path / "documents.jsonl"
    source.write_text("".join(json.dumps({"text": f"document{n}"}) + "\n" for n in range(6)))
    prepare([source], tmp_path / "whole", shard_tokens=20)  # two documents of ten tokens fill a shard
    with pytest.raises(InterruptedHereError):
        prepare([source], tmp_path / "pieces", Failing(3), shard_tokens=20)
    assert len(list((tmp_path / "pieces").glob("tokens-*"))) == 1
    prepare([source], tmp_path / "pieces", shard_tokens=20)
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "pieces" / path.name).read_bytes() == path.read_bytes()


def test_prepare_does_not_go_on_over_sources_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workload.data.prepare._BATCH_CHARACTERS", 500)
    source = tmp_path / "documents.jsonl"
    source.write_text("".join(json.dumps({"text": f"{i} " * 30}) + "\n" for i in range(100)))
    with pytest.raises(InterruptedHereError):
        prepare([source], tmp_path / "out", Failing(80), shard_tokens=700)
    source.write_text(source.read_text().replace("1", "one"))
    with pytest.raises(DataError, match="sources that changed since"):
        prepare([source], tmp_path / "out", shard_tokens=700)


def test_prepare_goes_on_where_no_shard_was_whole_yet(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(InterruptedHereError):
        prepare([text], out, Failing(0))
    (out / "tokens-00000.bin").write_bytes(b"half a shard")
    (tmp_path / "lines.jsonl").write_text('{"body": "abc"}')
    with pytest.raises(DataError, match="has no text in 'text'"):
        prepare([tmp_path / "lines.jsonl"], out)
    assert prepare([tmp_path / "lines.jsonl"], out, field_name="body").tokens == 4
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "tokens-00000.bin"]


def test_prepare_does_not_mix_sources(text: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("other")
    shard = {"file": "tokens-00000.bin", "tokens": 4, "sha256": ""}
    left = {"key": "another", "documents": 1, "offset": 0, "shards": [shard]}
    out = tmp_path / "out"
    out.mkdir()
    (out / "unfinished.json").write_text(json.dumps(left))
    with pytest.raises(DataError, match="holds 1 shards of other sources, of sources that changed since"):
        prepare([text], out)


def test_segments_end_with_the_last_token_of_a_document(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("abc")
    (tmp_path / "b").write_text("de")
    prepare([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    dataset = Dataset(tmp_path / "out", sequence_length=6)
    tokens = dataset.read(np.array([0]))
    assert dataset.segments(tokens).tolist() == [[0, 0, 0, 0, 1, 1, 1]]


@pytest.mark.parametrize("changed", [{"vocab_size": "257"}, {"version": 99}, {"tokens": None}])
def test_a_manifest_of_another_kind_is_refused(changed: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "a").write_text("abc" * 50)
    prepare([tmp_path / "a"], tmp_path / "out")
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changed))
    with pytest.raises(DataError, match=r"manifest.json: is not a manifest"):
        Dataset(tmp_path / "out", sequence_length=6)
