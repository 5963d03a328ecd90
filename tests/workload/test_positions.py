"""Only the tokens that `extract.positions` selects are stored; an index counts and finds them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.workload.chatting import tokenizer
from tests.workload.extracting import ARCH, CONFIG, extract, in_many_shards, make_stream, save_weights
from tests.workload.slice import cpu_devices
from tests.workload.test_activations import Counting
from workload.__main__ import main
from workload.activations import shard
from workload.activations.batches import batches
from workload.activations.reader import Activations
from workload.data import stream as streams
from workload.data.stream import Stream
from workload.errors import ConfigError, DataError
from workload.extract import config as configs
from workload.extract import positions
from workload.runs.store import FolderStore

LENGTHS = [20 + n % 80 for n in range(40)]

SELECTIONS = (("last",), ("every:7", "-3"), ("role:user",), ("0", "last"))


@pytest.fixture(scope="module", name="weights")
def _weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "model", ARCH)


@pytest.fixture(scope="module", name="stream")
def _stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """Every third token is a user's, every other third nobody's."""
    path = tmp_path_factory.mktemp("stream") / "stream_003.safetensors"
    path.write_bytes(make_stream(LENGTHS))
    plain = streams.read(str(path))
    about = replace(plain.about, roles=("system", "user"))
    return replace(plain, about=about, roles_T=(np.arange(sum(LENGTHS)) % 3).astype(np.uint8))


@pytest.fixture(scope="module", name="whole")
def _whole(stream: Stream, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    extract(in_many_shards(CONFIG), stream, weights, FolderStore(root))
    return root


def selected(stream: Stream, document: int, words: tuple[str, ...]) -> list[int]:
    begin, end = stream.offsets[document : document + 2].tolist()
    ways = {
        "last": [end - begin - 1],
        "every:7": [*range(0, end - begin, 7)],
        "role:user": [n - begin for n in range(begin, end) if stream.roles_T[n] == 2],
        "0": [0],
        "-3": [end - begin - 3],
    }
    return sorted({position for word in words for position in ways[word]})


@pytest.mark.parametrize("chips", [1, 4])
def test_what_is_kept_is_what_is_there_of_all_tokens(
    chips: int, whole: Path, stream: Stream, weights: Path, tmp_path: Path
) -> None:
    selections = {"-".join(words): words for words in SELECTIONS}
    with cpu_devices(chips):
        for label, words in selections.items():
            config = replace(CONFIG, extract=replace(CONFIG.extract, positions=words, shard_bytes=60_000))
            extract(config, stream, weights, FolderStore(tmp_path / label))
    everything = Activations(str(whole))
    for label, words in selections.items():
        kept = Activations(str(tmp_path / label))
        assert [shard.problems() for shard in kept.shards()] == [[]] * len(kept.names), label
        for number, name in enumerate(stream.ids):
            places = selected(stream, number, words)
            assert kept[name].positions.tolist() == places
            assert kept[name].tokens.tolist() == stream.document(number)[places].tolist()
            for point in kept.points:
                expected = everything[name][point][places]
                assert np.linalg.norm(kept[name][point] - expected) <= 1e-5 * np.linalg.norm(expected), label
        values = np.concatenate([document["mlp_out.1"] for document in kept]).astype(np.float64)
        moments = kept.moments("mlp_out.1")
        assert moments.count == len(values)
        np.testing.assert_allclose(moments.variance, values.var(axis=0), rtol=1e-4, atol=1e-7)


def test_a_run_of_all_tokens_is_the_one_that_was_begun_before_there_was_a_choice(whole: Path) -> None:
    assert "positions" not in json.loads((whole / "config.json").read_text())["extract"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["first"], "extract.positions = first: selects no positions\n    fix: one of all, last, every:8"),
        (["every:0"], "selects no positions"),
        (["all", "last"], "extract.positions = all: must be alone"),
        (["20"], "20: document 'doc-0' has only 20 tokens\n    fix: -20 to 19, which all 40 documents have"),
        (["-21"], "-21: document 'doc-0' has only 20 tokens"),
        (["every:99"], "keeps first tokens alone: the longest document has 59"),
        (["role:usr"], "no message of the stream has it\n    fix: one of user"),
        ([], "keeps no token of this stream"),
    ],
)
def test_positions_that_documents_have_not(
    words: list[str], message: str, stream: Stream, weights: Path, tmp_path: Path
) -> None:
    config = replace(CONFIG, extract=replace(CONFIG.extract, positions=tuple(words)))
    with pytest.raises(ConfigError) as refused:
        extract(config, stream, weights, FolderStore(tmp_path))
    assert message in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("5", ("5",)), ("-2", ("-2",)), ("last", ("last",)), ('[0, "last"]', ("0", "last")),
        ("last,0", ("last", "0")), ("0, -2", ("0", "-2")),
    ],
)  # fmt: skip
def test_words_may_be_bare_and_several_with_or_without_brackets(given: str, words: tuple[str, ...]) -> None:
    config = configs.load("qwen2.5-0.5b.toml", [f"extract.positions={given}"])
    assert config.extract.positions == words


def test_a_stream_without_roles_or_of_another_role_alone_is_refused(stream: Stream) -> None:
    plain = replace(stream, about=replace(stream.about, roles=()))
    _, [problem] = positions.parse(["role:user"], plain)
    assert "the stream's tokens have no roles" in str(problem)
    silent = replace(stream, roles_T=np.zeros_like(stream.roles_T))
    _, [problem] = positions.parse(["role:user"], silent)
    assert "keeps no token of this stream" in str(problem)


@pytest.mark.parametrize("kind", ["qwen", "llama"])
def test_streams_of_conversations_know_who_says_each_token(kind: str, tmp_path: Path) -> None:
    folder = tokenizer(tmp_path / "tokenizer", kind)
    conversations = [
        [{"role": "user", "content": "user"}, {"role": "assistant", "content": "a user is ünï  "}],
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello <|im_end|>"}],
    ]
    lines = (json.dumps({"messages": messages}) for messages in conversations)
    (tmp_path / "chats.jsonl").write_text("\n".join(lines) + "\n")
    line = ["data", "streams", "--source", str(tmp_path / "chats.jsonl"), "--field", "messages", "--chat"]
    assert main([*line, "--tokenizer", str(folder), "--out", str(tmp_path / "streams")]) == 0
    stream = streams.read(str(tmp_path / "streams" / "stream_000.safetensors"))
    assert stream.about.roles == ("user", "assistant", "system")
    import tokenizers

    decode = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).decode
    for number, messages in enumerate(conversations):
        roles_L = stream.roles_T[stream.offsets[number] : stream.offsets[number + 1]]
        for message in messages:
            mine = stream.document(number)[roles_L == 1 + stream.about.roles.index(message["role"])]
            assert decode(mine.tolist(), skip_special_tokens=False).strip() == message["content"].strip()


def test_documents_are_counted_and_found_without_opening_every_shard(whole: Path) -> None:
    store = Counting(whole)
    activations = Activations(str(whole), store)
    assert len(activations.names) > 8
    assert len(activations) == len(LENGTHS)
    assert sum(map(activations.tokens, activations.names)) == sum(LENGTHS)
    reads = store.reads
    assert activations["doc-7"].sample == 107
    assert reads < len(activations.names)
    assert store.reads <= reads + 2  # of one shard


def test_a_run_without_an_index_and_one_with_a_stale_one(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, stale = FolderStore(tmp_path / "old"), FolderStore(tmp_path / "stale")
    for name in FolderStore(whole).list(""):
        raw = FolderStore(whole).read(name)
        stale.write(name, raw)
        if not name.startswith("indices/"):
            old.write(name, raw)
    former = Activations(old.url)
    assert len(former) == len(LENGTHS)
    assert former["doc-7"].sample == 107
    first, second = former.names[:2]
    stale.write(first, stale.read(second))
    with pytest.raises(DataError, match="holds other documents than its index\n    fix: remove indices/"):
        Activations(stale.url)[former.ids(first)[0]]
    assert main(["activations", "verify", stale.url]) == 1
    assert f"{first}: holds other documents than its index" in capsys.readouterr().out
    stale.write(shard.index(3), b"damaged")
    assert main(["activations", "verify", stale.url]) == 1
    assert f"{shard.index(3)}: is no shard, or damaged" in capsys.readouterr().out


def test_a_batch_holds_several_tensors_of_the_same_tokens(whole: Path) -> None:
    """So that a document's first token, which has no meaning in itself, can be left out."""
    activations = Activations(str(whole))
    places = {}
    for document in activations:
        rows = zip(document["mlp_out.1"], document.tokens.tolist(), document.positions.tolist(), strict=True)
        places |= {row.tobytes(): at for row, *at in rows}
    seen = 0
    for at_once in (1, 3, 100):
        for values, tokens, positions_B in batches(
            activations, ("mlp_out.1", "tokens", "positions"), 64, shards_at_once=at_once
        ):
            rows = zip(values, tokens.tolist(), positions_B.tolist(), strict=True)
            assert all(places[row.tobytes()] == at for row, *at in rows)
            seen += len(values)
    assert seen == 3 * sum(LENGTHS)
