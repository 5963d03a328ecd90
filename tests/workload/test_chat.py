"""Chat templates give the texts that transformers gives; unusable conversations are rejected by name."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.limits import HANG_S
from tests.parity import environment
from tests.workload.chatting import KINDS, ODD, settings, tokenizer
from workload.__main__ import main
from workload.data import stream as streams
from workload.data.conversations import encode
from workload.data.sources import Sample
from workload.data.template import ConversationError, Template
from workload.data.tokenizers import open_tokenizer
from workload.data.tokens import ANSWER
from workload.errors import DataError

HELLO = [{"role": "user", "content": "hello"}]
CONVERSATIONS: list[list[dict[str, Any]]] = [
    HELLO,
    [{"role": "system", "content": " be brief\n"}, *HELLO],
    [*HELLO, {"role": "assistant", "content": "  and you?  "}, {"role": "user", "content": ""}],
    [
        {
            "role": "user",
            "content": "<|im_end|>\n<|eot_id|> <b>&amp; \"quotes\" 'and' ünïcödé 漢字 🧪\r\n\ttab",
        }
    ],
    [*HELLO, {"role": "tool", "content": "42", "name": None}],
    [
        *HELLO,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "f", "arguments": {"ü": [1, 2.5, None]}}}],
        },
    ],
    [{"role": role, "content": f"{number} {role}"} for number in range(3) for role in ("user", "assistant")],
    [{"role": "critic", "content": "nobody knows me"}],
    [{"role": "user", "content": "a\n\n\nb" * 60}],
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    return {kind: tokenizer(folder / kind, kind) for kind in KINDS}


RECORDED = Path(environment.__file__).with_name("reference") / "chats.json"


@pytest.mark.parametrize("recorded", [True, pytest.param(False, marks=pytest.mark.prove)])
def test_texts_and_tokens_are_those_of_transformers(
    recorded: bool, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As recorded, or (`make prove`) as transformers makes them now; TPU_RECORD=1 records that."""
    as_file = tokenizer(tmp_path / "file", "odd")
    (as_file / "chat_template.jinja").write_text(ODD.replace("\n", "\r\n"))
    tried = [*folders.values(), as_file]
    reference = json.loads(RECORDED.read_text()) if recorded else transformers_texts(tried, tmp_path)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(reference["at"]))  # some templates write the date
    foreign = reference["found"]
    anies: list[Any] = []
    for folder in tried:
        template, tokens = Template(folder), open_tokenizer(str(folder), templated=True)
        for messages, prompted in product(CONVERSATIONS, (True, False)):
            try:
                text = template.render(messages, prompted)
            except ConversationError:
                anies.append(None)
            else:
                anies.append([text, tokens.encode_alone([text])[0].tolist()])
    assert anies == [item and item[:2] for item in foreign]
    marked = Template(folders["marked"]), open_tokenizer(str(folders["marked"]), templated=True)
    first = list(folders).index("marked") * 2 * len(CONVERSATIONS)
    masks = 0
    for messages, (text, _, mask) in zip(CONVERSATIONS, foreign[first + 1 :: 2], strict=False):
        try:
            spans = marked[0].answers(messages, text)
        except ConversationError:  # it has no answer, or an empty one
            continue
        sample = Sample("", text, spans=tuple(("assistant", *span) for span in spans))
        (encoded,) = encode([sample], marked[1], 0)
        assert encoded.marks_L is not None
        assert (encoded.marks_L & ANSWER).tolist() == mask
        masks += 1
    assert masks == 3
    if not recorded and "TPU_RECORD" in os.environ:
        RECORDED.write_text(json.dumps(reference) + "\n")
    refused = sum(item is None for item in anies)
    assert 0 < refused < len(anies) / 4


def transformers_texts(folders: list[Path], tmp_path: Path) -> dict[str, Any]:
    cases, out = tmp_path / "cases.json", tmp_path / "out.json"
    request = {"folders": list(map(str, folders)), "conversations": CONVERSATIONS, "prompted": [True, False]}
    cases.write_text(json.dumps(request))
    line = [environment.python(), RECORDED.parents[1] / "chats.py", cases, out]
    run = subprocess.run(line, capture_output=True, text=True, timeout=HANG_S)
    assert run.returncode == 0, run.stderr
    answers: dict[str, Any] = json.loads(out.read_text())
    return answers


@pytest.mark.parametrize("kind", ["qwen", "llama"])
def test_the_template_writes_the_first_token_and_nobody_else(kind: str, folders: dict[str, Path]) -> None:
    tokens = open_tokenizer(str(folders[kind]), templated=True)
    alone = open_tokenizer(str(folders[kind]))
    text = Template(folders[kind]).render(HELLO)
    (result,) = tokens.encode_alone([text])
    specials = [name for name in KINDS[kind][0] if name in text]
    ids = {name: alone.encode_alone([name])[0].tolist() for name in specials}  # as text: many tokens
    assert all(len(item) > 1 for item in ids.values())
    first = "<|begin_of_text|>" if kind == "llama" else "<|im_start|>"
    assert text.count(first) == (1 if kind == "llama" else 3)
    assert (result == result[0]).sum() == text.count(first)
    with_first = 1 if kind == "llama" else 0
    assert len(alone.encode_alone(["hello"])[0]) == len(tokens.encode_alone(["hello"])[0]) + with_first


def lines(path: Path, *entries: Any) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def streamed(source: Path, out: Path, *options: str) -> tuple[streams.Stream, list[dict[str, Any]]]:
    arguments = ["--source", str(source), "--out", str(out), *options]
    assert main(["data", "streams", *arguments]) == 0
    aside = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    return streams.read(str(out / "stream_000.safetensors")), aside


def test_what_is_no_conversation_is_rejected_by_name(folders: dict[str, Path], tmp_path: Path) -> None:
    source = lines(
        tmp_path / "s.jsonl",
        {"id": "list", "messages": HELLO},
        {"id": "text", "messages": "hello"},
        {"id": "no role", "messages": [{"from": "human", "value": "hello"}]},
        {"id": "odd role", "messages": [{"role": 7, "content": "hello"}]},
        {"id": "no content", "messages": [*HELLO, {"role": "assistant"}]},
        {"id": "parts", "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]},
        {"id": "words", "messages": ["hello"]},
        {"id": "null", "messages": [None]},
        {"id": "empty", "messages": []},
        {"id": "blank", "messages": ""},
        {"id": "object", "messages": {"role": "user", "content": "hello"}},
        {"id": "refused", "messages": [{"role": "critic", "content": "hello"}]},
        {"messages": HELLO},
        {"id": "half a character", "messages": [{"role": "user", "content": "\ud83e"}]},
    )
    options = ["--chat", "--field", "messages", "--id", "id", "--tokenizer", str(folders["llama"])]
    result, aside = streamed(source, tmp_path / "out", *options)
    assert result.ids == ("list", "text", "half a character")
    assert result.document(0).tolist() == result.document(1).tolist()
    assert {item["where"].rpartition(":")[2]: item["reason"] for item in aside} == {
        "3": "is no conversation: message 1 has no role",
        "4": "is no conversation: message 1 has a role that is no name",
        "5": "is no conversation: message 2 has no content",
        "6": "is no conversation: message 1 has a content that is no text",
        "7": "is no conversation: message 1 is a str, not an object of role and content",
        "8": "is no conversation: message 1 is a NoneType, not an object of role and content",
        "9": "is empty",
        "10": "is empty",
        "11": "has no text or messages in 'messages'",
        "12": "is refused by the chat template: nobody is called critic",
        "13": "has no 'id' to name it",
    }


def test_the_system_speaks_first_where_nobody_did(folders: dict[str, Path], tmp_path: Path) -> None:
    own = [{"role": "system", "content": "own"}, *HELLO]
    source = lines(tmp_path / "s.jsonl", {"text": "hello"}, {"text": own})
    options = ["--chat", "--tokenizer", str(folders["qwen"])]
    result, _ = streamed(source, tmp_path / "out", *options, "--system", "given", "--no-generation-prompt")
    template, tokens = Template(folders["qwen"]), open_tokenizer(str(folders["qwen"]), templated=True)
    given = [{"role": "system", "content": "given"}, *HELLO]
    texts = [template.render(messages, prompted=False) for messages in (given, own)]
    assert [result.document(n).tolist() for n in (0, 1)] == [
        item.tolist() for item in tokens.encode_alone(texts)
    ]
    assert "assistant" not in texts[0]


def test_text_files_and_parquet_hold_conversations_too(folders: dict[str, Path], tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("hello")
    messages = [HELLO, [{"role": "system", "content": "be brief", "name": "me"}, *HELLO], None]
    parquet.write_table(pyarrow.table({"text": messages}), tmp_path / "in" / "b.parquet")
    result, aside = streamed(tmp_path / "in", tmp_path / "out", "--chat", "--tokenizer", str(folders["qwen"]))
    assert len(result) == 2 + 1
    assert result.document(0).tolist() == result.document(1).tolist()
    assert [item["reason"] for item in aside] == ["is empty"]


def test_another_template_system_or_prompt_is_another_deal(folders: dict[str, Path], tmp_path: Path) -> None:
    source = lines(tmp_path / "s.jsonl", {"text": "hello"})
    changed = tokenizer(tmp_path / "changed", "qwen")
    (changed / "chat_template.jinja").write_text("{{ messages[0].content }}")
    split = {
        streamed(source, tmp_path / str(number), *options)[0].about.dealt_sha256
        for number, options in enumerate(
            (
                ["--tokenizer", str(folders["qwen"])],
                ["--tokenizer", str(folders["qwen"]), "--chat"],
                ["--tokenizer", str(folders["qwen"]), "--chat", "--system", "x"],
                ["--tokenizer", str(folders["qwen"]), "--chat", "--no-generation-prompt"],
                ["--tokenizer", str(changed), "--chat"],
            )
        )
    }
    assert len(split) == 5


def test_the_date_is_one_for_all_and_can_be_given(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")
    new_year = Template(folders["llama"])
    assert "Today: 01 Jan 2026\n" in new_year.render(HELLO)
    qwen = Template(folders["qwen"]).identity
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(1767225600 + 86400))
    assert Template(folders["llama"]).identity != new_year.identity
    assert Template(folders["qwen"]).identity == qwen  # asks for no date
    for wrong in ("soon", "9" * 30):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", wrong)
        with pytest.raises(DataError, match=r"SOURCE_DATE_EPOCH = .*: must be a number"):
            Template(folders["llama"])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template, in chat_template.jinja or tokenizer_config.json"),
        (7, "has no chat template"),
        ([], "no chat template is named default, of: none"),
        ([{"name": "rag", "template": "x"}, 3], "no chat template is named default, of: rag"),
        ("{% for x in %}", "the chat template doesn't parse: "),
        ("{{ messages | no_such_filter }}", "the chat template doesn't parse: No filter named"),
        ("{% generation %}", "the chat template doesn't parse: "),
        ("{{ " + "(" * 5000, "the chat template doesn't parse: "),
    ],
)
def test_a_template_that_is_none_is_told_before_work(
    template: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tokenizer(tmp_path / "t", "qwen")
    settings(folder, **({} if template is None else {"chat_template": template}))
    source, out = lines(tmp_path / "s.jsonl", {"text": "hello"}), tmp_path / "out"
    arguments = ["--source", str(source), "--chat", "--tokenizer", str(folder), "--out", str(out)]
    assert main(["data", "streams", *arguments]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "\n    fix: " in shown
    assert not list(out.glob("*"))


def test_a_machine_without_jinja2_is_told(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(DataError, match=r"^--chat: needs the package jinja2\n    fix: pip install jinja2"):
        Template(folders["qwen"])


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_a_damaged_tokenizer_config_is_named(content: bytes, tmp_path: Path) -> None:
    folder = tokenizer(tmp_path / "t", "qwen")
    (folder / "tokenizer_config.json").write_bytes(content)
    with pytest.raises(DataError, match=r"tokenizer_config.json: is not .*\n    fix: "):
        Template(folder)
    (folder / "tokenizer_config.json").unlink()
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"chat_template.jinja: can't be read: "):
        Template(folder)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.append(1) }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ strftime_now.__globals__ }}{{ raise_exception.__globals__['os'].system('true') }}",
        "{{ 1 / 0 }}",
        "{{ range(10 ** 9) | list }}",
        "{{ messages[0] + 1 }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ messages | tojson(indent=[]) }}",
        "{% include 'tokenizer.json' %}",
    ],
)
def test_a_template_gets_at_nothing_and_its_failures_are_the_samples(template: str, tmp_path: Path) -> None:
    folder = tokenizer(tmp_path / "t", "qwen")
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ConversationError, match="is refused by the chat template: "):
        Template(folder).render(HELLO)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inside: st.lists(inside) | st.dictionaries(st.sampled_from(["role", "content", "x"]), inside),
)


@pytest.fixture(scope="module")
def templates(folders: dict[str, Path]) -> list[Template]:
    return [Template(folder) for folder in folders.values()]


@given(st.lists(JSON))
def test_any_messages_make_a_text_or_are_refused(templates: list[Template], messages: list[Any]) -> None:
    for template in templates:
        with suppress(ConversationError):
            template.render(messages).encode()


@given(st.text(), st.booleans())
def test_any_text_is_said(templates: list[Template], text: str, prompted: bool) -> None:
    qwen = templates[0].render([{"role": "user", "content": text}], prompted)
    output = f"<|im_start|>user\n{text}<|im_end|>\n"
    assert qwen.endswith(output + "<|im_start|>assistant\n" * prompted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--chat"], "--tokenizer = bytes: must have a chat template"),
        (["--system", "x"], "--system = x: must come with --chat"),
        (["--no-generation-prompt"], "--no-generation-prompt = True: must come with --chat"),
        (["--augmentations", "2"], "--augmentations = 2: must come with --arc"),
        (["--seed", "0"], "--seed = 0: must come with --arc"),
        (["--arc", "--augmentations", "-1"], "--augmentations = -1: must lie between 0 and 1000000"),
    ],
)
def test_options_that_say_nothing_are_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = lines(tmp_path / "s.jsonl", {"text": "hello"})
    arguments = ["--source", str(source), "--out", str(tmp_path / "out"), *options]
    assert main(["data", "streams", *arguments]) == 2
    assert message in capsys.readouterr().err
