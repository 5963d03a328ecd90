"""Conversations become tokens of which the answers alone count, and rows that keep them whole."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.workload.chatting import settings, tokenizer
from workload.__main__ import main
from workload.data.conversations import Conversations, open_folder
from workload.data.template import Template
from workload.data.tokenizers import HuggingFace
from workload.data.tokens import ANSWER, BEGIN, Manifest
from workload.errors import DataError

TURNS = [
    {"role": "user", "content": "what is a grid?"},
    {"role": "assistant", "content": "a rule <b>"},
    {"role": "user", "content": "and a colour?"},
    {"role": "assistant", "content": "a digit, 7"},
]


@pytest.fixture(scope="module", params=["qwen", "llama", "marked"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer(tmp_path_factory.mktemp("tokenizer") / request.param, request.param)


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer(tmp_path_factory.mktemp("tokenizer") / "marked", "marked")


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def prepared(source: Path, folder: Path, out: Path, *options: str) -> int:
    line = ["--source", source, "--out", out, "--tokenizer", folder, "--chat", *options]
    return main(["data", "prepare", *map(str, line)])


def content(out: Path) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    manifest = Manifest.read(out)
    tokens = [np.fromfile(out / shard.file, manifest.dtype) for shard in manifest.shards]
    marks = [np.fromfile(out / shard.marks, np.uint8) for shard in manifest.shards]
    return np.concatenate(tokens), np.concatenate(marks)


def spelled(folder: Path, tokens: NDArray[Any]) -> str:
    import tokenizers

    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    text: str = made.decode(tokens.tolist(), skip_special_tokens=False)
    return text


def test_answers_count_with_the_token_that_ends_them_and_nothing_else(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")  # Llama's template writes the date
    assert prepared(lines(tmp_path / "s.jsonl", {"messages": TURNS}), folder, tmp_path / "out") == 0
    tokens, marks = content(tmp_path / "out")
    text = Template(folder).render(TURNS, prompted=False)
    known = HuggingFace(folder, templated=True).encode_alone([text])[0]
    assert tokens.tolist() == known.tolist(), "the tokens of transformers"
    end = {"qwen": "<|im_end|>", "llama": "<|eot_id|>", "marked": "</s>"}[folder.name]
    assert spelled(folder, tokens[marks & ANSWER > 0]) == f"a rule <b>{end}a digit, 7{end}"
    assert np.flatnonzero(marks & BEGIN).tolist() == [0]
    kept = {path.name for path in (tmp_path / "out").iterdir()}
    assert kept >= {"tokenizer.json", "tokenizer_config.json"}, "an export writes them beside the weights"


def test_instructions_and_completions_are_conversations_of_two_messages(marked: Path, tmp_path: Path) -> None:
    def tokens(name: str, row: dict[str, Any]) -> list[int]:
        assert prepared(lines(tmp_path / f"{name}.jsonl", row), marked, tmp_path / name) == 0
        return content(tmp_path / name)[0].tolist()  # type: ignore[no-any-return]

    question, answer = {"role": "user", "content": "add\n\n1 2"}, {"role": "assistant", "content": "3"}
    expected = tokens("messages", {"messages": [question, answer]})
    assert tokens("alpaca", {"instruction": "add", "input": "1 2", "output": "3"}) == expected
    assert tokens("prompt", {"prompt": "add\n\n1 2", "completion": "3"}) == expected
    assert tokens("lists", {"prompt": [question], "completion": [answer]}) == expected
    assert tokens("plain", {"instruction": "add\n\n1 2", "output": "3"}) == expected


GOOD = {"messages": TURNS}


@pytest.mark.parametrize(
    ("row", "problem", "fix"),
    [
        ({"text": "hello"}, "has no messages in 'messages'", "mend it, or leave the file out"),
        ({"chat": TURNS}, "has no messages in 'messages'", "--field one of chat"),
        ({"messages": []}, "has no messages", "mend it, or leave it out"),
        ({"messages": None}, "has no messages", "mend it, or leave the file out"),
        ({"messages": TURNS[:1]}, "has no message of role 'assistant'", "mend it"),
        ({"messages": TURNS[1:]}, "begins with an answer", "mend it"),
        (
            {"messages": [*TURNS[:3], {"role": "assistant", "content": " "}]},
            "an empty answer: message 4",
            "mend",
        ),
        ({"instruction": "add", "output": ""}, "has an empty answer: message 2", "mend it"),
        ({"messages": [{"from": "human", "value": "hello"}]}, "message 1 has no role", "mend it"),
        ('[{"messages": []}]\n', "is a JSON array, not JSON lines", "jq -c '.[]' > s.jsonl"),
    ],
)
def test_a_row_that_teaches_nothing_is_refused_with_its_line(
    row: Any, problem: str, fix: str, marked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = lines(tmp_path / "s.jsonl", GOOD, "\n", row)
    assert prepared(source, marked, tmp_path / "out") == 2
    refusal = capsys.readouterr().err
    assert f"{source}:3: " in refusal
    assert problem in refusal.splitlines()[0]
    assert fix in refusal.splitlines()[1]
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("bos_token", "perhaps eos_token was meant; or name the token in"),
        ("add_generaton_prompt", "perhaps add_generation_prompt was meant; or"),
        ("when", "fix: name the token in"),
    ],
)
def test_a_template_that_writes_what_nothing_names_is_refused_before_work(
    name: str, fix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tokenizer(tmp_path / "tokenizer", "qwen")
    written = "{% for _ in documents or [] %}{{ " + name + " }}{% endfor %}"
    template = written + "{% for m in messages %}{{ m.content }}{% endfor %}"
    settings(folder, eos_token="<|im_end|>", chat_template=template)
    source = lines(tmp_path / "s.jsonl", GOOD)
    assert prepared(source, folder, tmp_path / "out") == 2
    refusal = capsys.readouterr().err
    assert f"tokenizer_config.json: the chat template writes {name}, which neither" in refusal
    assert fix in refusal
    plain = f"{{{{ {name} }}}}"
    for guarded in (
        f"{{% if {name} %}}{plain}{{% endif %}}",
        f"{{{{ {name} or '' }}}}{{{{ {name} | default('') }}}}",
    ):
        settings(folder, eos_token="<|im_end|>", chat_template=template.replace(plain, guarded))
        assert Template(folder).render(TURNS[:1], prompted=False) == TURNS[0]["content"]
    late = f"{{% if {name} is defined %}}{{% endif %}}{plain}"
    settings(folder, eos_token="<|im_end|>", chat_template=late)
    with pytest.raises(DataError, match=f"the chat template writes {name}, which neither"):
        Template(folder).render(TURNS[:1])


@pytest.mark.parametrize(
    "used",
    [
        "{% if when == 'now' %}now{% endif %}",
        "{{ 'now' if when != when else '' }}{{ 'x' if 'now' in when else '' }}",
        "{% for each in when if each %}{{ each }}{% endfor %}",
        "{% macro first(given) %}{{ given or '' }}{% endmacro %}{{ first(when) }}",
        "{% set n = when | length %}{{ '' if n == 0 else n }}{{ when | list | join }}",
        "{% set kept = when %}",
    ],
)
def test_a_name_that_is_defined_nowhere_may_be_used_where_nothing_of_it_is_written(
    used: str, tmp_path: Path
) -> None:
    folder = tokenizer(tmp_path / "tokenizer", "qwen")
    settings(folder, chat_template=used + "{{ messages[0].content }}")
    assert Template(folder).render(TURNS[:1], prompted=False) == TURNS[0]["content"]
    settings(folder, chat_template="{% set text = whan + messages[0].content %}{{ text }}")
    with pytest.raises(DataError, match="the chat template writes whan, which neither"):
        Template(folder)


def test_a_name_that_a_branch_of_the_template_sets_is_no_token_that_is_missing(tmp_path: Path) -> None:
    folder = tokenizer(tmp_path / "tokenizer", "qwen")
    branch = "{% if messages[0].role == 'system' %}{% set lead = messages[0].content %}{% endif %}{{ lead }}"
    settings(folder, chat_template=branch)
    assert Template(folder).render(TURNS[:1]) == ""


def test_only_asked_for_is_a_conversation_cut_and_never_before_its_answers(
    marked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    source = lines(tmp_path / "s.jsonl", short, GOOD)
    assert prepared(source, marked, tmp_path / "whole") == 0
    longest = Manifest.read(tmp_path / "whole").longest
    assert longest
    assert longest.where == "s.jsonl:2"
    _, marks = content(tmp_path / "whole")
    first = int(np.argmax(marks[np.flatnonzero(marks & BEGIN)[1] :] & ANSWER)) + 1
    capsys.readouterr()
    assert prepared(source, marked, tmp_path / "cut", "--truncate", str(first)) == 0
    assert f"1 conversations were cut to {first} tokens" in capsys.readouterr().out
    assert Manifest.read(tmp_path / "cut").longest == type(longest)(first, "s.jsonl:2")
    assert prepared(source, marked, tmp_path / "none", "--truncate", str(first - 1)) == 2
    refusal = capsys.readouterr().err
    assert f"{source}:2: its answers begin with token {first} of {longest.tokens}" in refusal
    assert "fix: raise --truncate, or leave it out" in refusal
    with pytest.raises(DataError) as error:
        open_folder(tmp_path / "whole", longest.tokens - 2)
    assert f"s.jsonl:2: has {longest.tokens} tokens, an example {longest.tokens - 1}" in str(error.value)
    assert f"--truncate {longest.tokens - 1}" in str(error.value)


def test_rows_hold_whole_conversations_once_with_their_marks(marked: Path, tmp_path: Path) -> None:
    pairs = [
        [{"role": "user", "content": "x" * (n % 7)}, {"role": "assistant", "content": f"{n}"}]
        for n in range(40)
    ]
    rows = [{"messages": pair} for pair in pairs]
    assert prepared(lines(tmp_path / "s.jsonl", *rows), marked, tmp_path / "out") == 0
    tokens, marks = content(tmp_path / "out")
    begins = [*np.flatnonzero(marks & BEGIN).tolist(), len(tokens)]
    documents = {
        tuple(tokens[begin:end].tolist()): (marks[begin:end] & ANSWER).tolist()
        for begin, end in pairwise(begins)
    }
    dataset = open_folder(tmp_path / "out", 64)
    assert isinstance(dataset, Conversations)
    assert len(dataset) < len(pairs) / 2, "packed"
    packed = dataset.rows(np.arange(len(dataset)))
    seen = []
    for row in range(len(dataset)):
        parts = [packed[name][row] for name in ("tokens_BxL1", "segments_BxL1", "counted_BxL1")]
        for segment in range(parts[1].max() + 1):
            inside = parts[1] == segment
            ids = tuple(parts[0][inside].tolist())
            if ids in documents:
                seen.append(ids)
                assert parts[2][inside].tolist() == documents[ids]
            else:  # padding: nothing attends to it, and it counts nowhere
                assert len(ids) == 1
                assert not parts[2][inside].any()
    assert sorted(seen) == sorted(documents)


def test_an_interrupted_preparation_ends_with_the_same_bytes(
    marked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workload.data import writing
    from workload.data.chat import Conversations as Chats
    from workload.data.prepare import prepare
    from workload.data.sources import Sources

    rows = [
        {"messages": [{"role": "user", "content": "a" * n}, {"role": "assistant", "content": "b"}]}
        for n in range(1, 30)
    ]
    source = lines(tmp_path / "s.jsonl", *rows)
    chats = Chats(
        Sources([source], "messages", kinds=(list,)), Template(marked), prompted=False, answers=True
    )

    def run(out: Path) -> None:
        made = HuggingFace(marked, "</s>", templated=True)
        prepare([source], out, made, shard_tokens=100, chats=chats, max_tokens=40)

    run(tmp_path / "whole")
    monkeypatch.setattr("workload.data.prepare._BATCH_CHARACTERS", 50)
    finish, left = writing.Writer._finish_shard, [2]

    def interrupted(self: Any, *arguments: Any) -> None:
        finish(self, *arguments)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(writing.Writer, "_finish_shard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "resumed")
    run(tmp_path / "resumed")
    whole, resumed = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("whole", "resumed")
    )
    assert len(Manifest.read(tmp_path / "whole").shards) > 3
    assert resumed == whole
