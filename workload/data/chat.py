"""Conversations as texts, by a tokenizer's chat template.

A template is a Jinja program beside a Hugging Face tokenizer. It is rendered like transformers'
`apply_chat_template` does (huggingface.co/docs/transformers/chat_templating), and
`tests/workload/test_chat.py` compares the two.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workload.data.sources import Reading, Sample, whole
from workload.errors import DataError

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

_FILE, _CONFIG = "chat_template.jinja", "tokenizer_config.json"
# Variables of a template; undefined if the tokenizer lacks the token.
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ConversationError(DataError):
    """A conversation can't be rendered; others may be."""


class Template:
    """A tokenizer's chat template."""

    def __init__(self, tokenizer: Path):
        """Read it from the tokenizer's folder.

        Raises:
            DataError: the template is missing or invalid.
        """
        folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
        config = _config(folder / _CONFIG)
        file, source = _source(folder, config)
        now = _now()
        environment = _environment(now)
        try:
            self._template = environment.from_string(source)
        except Exception as error:  # an invalid template may fail in Jinja or in Python's compiler
            fix = "get the tokenizer's files again, or mend the template"
            raise DataError(f"{file}: the chat template doesn't parse: {error}\n    fix: {fix}") from None
        self._tokens = {name: _spelled(config[name]) for name in _TOKENS if config.get(name) is not None}
        day = now.date().isoformat() if "strftime_now" in source else ""
        decides = json.dumps([source, self._tokens, day], sort_keys=True)
        self.identity = hashlib.sha256(decides.encode()).hexdigest()

    def render(self, messages: Sequence[Any], prompted: bool = True) -> str:
        """Return the conversation as the model's input, its special tokens spelled out.

        Args:
            messages: in order, each an object of `role`, `content` and other keys of the template.
            prompted: append the template's prompt for an answer.

        Raises:
            ConversationError: a message is invalid, or refused by the template.
        """
        for number, message in enumerate(messages, 1):
            if problem := _problem(message):
                raise ConversationError(f"is no conversation: message {number} {problem}")
        # A null means an absent key: Parquet gives each message every key.
        output = [{key: value for key, value in message.items() if value is not None} for message in messages]
        known = {"messages": output, "tools": None, "documents": None, "add_generation_prompt": prompted}
        try:
            return whole(self._template.render(**known, **self._tokens))
        except Exception as error:  # a template is a program and may raise anything
            raise ConversationError(f"is refused by the chat template: {error}") from None

    def spans(
        self, messages: Sequence[Any], text: str, prompted: bool = True
    ) -> tuple[tuple[str, int, int], ...]:
        """Return role, begin and end of each message's content in its conversation's text.

        They are those of marks that are rendered in the contents' place; empty if the text differs otherwise.
        """
        marked = [
            {**message, "content": f"\ue000{number}\ue001"} if message.get("content") else message
            for number, message in enumerate(messages)
        ]
        try:
            first, *parts = re.split("\ue000(\\d+)\ue001", self.render(marked, prompted))
        except ConversationError:
            return ()
        for trimmed in (False, True):
            built, spans = first, []
            for number, literal in zip(parts[::2], parts[1::2], strict=True):
                content = messages[int(number)]["content"]
                content = content.strip() if trimmed else content
                spans.append((messages[int(number)]["role"], len(built), len(built) + len(content)))
                built += content + literal
            if built == text:
                return tuple(spans)
        return ()


@dataclass(frozen=True)
class Conversations:
    """Samples of a reading of conversations, rendered as texts.

    Attributes:
        reading: of conversations: lists of messages, or a user's texts.
        template: renders them.
        system: system message for conversations that lack one; empty: none.
        prompted: see `Template.render`.
    """

    reading: Reading
    template: Template
    system: str = ""
    prompted: bool = True

    @property
    def paths(self) -> Sequence[Path]:
        """See `Reading.paths`."""
        return self.reading.paths

    @property
    def decides(self) -> list[Any]:
        """See `Reading.decides`."""
        return [*self.reading.decides, self.template.identity, self.system, self.prompted]

    def files(self) -> list[Path]:
        """See `Reading.files`."""
        return self.reading.files()

    def samples(self) -> Iterator[Sample]:
        """See `Reading.samples`."""
        for sample in self.reading.samples():
            yield self._rendered(sample) if sample.content else sample

    def _rendered(self, sample: Sample) -> Sample:
        content = sample.content
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        first = messages[0]
        if self.system and not (isinstance(first, dict) and first.get("role") == "system"):
            messages = [{"role": "system", "content": self.system}, *messages]
        try:
            text = self.template.render(messages, self.prompted)
            return replace(sample, content=text, spans=self.template.spans(messages, text, self.prompted))
        except ConversationError as error:
            fix = "mend it, or leave it out"
            return replace(sample, content="", problem=str(error), fix=fix)


def _problem(message: Any) -> str:
    """Return the reason if this isn't a message; else empty."""
    if not isinstance(message, dict):
        return f"is a {type(message).__name__}, not an object of role and content"
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        return "has no role" if role is None else "has a role that is no name"
    if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
        return "has no content" if content is None else "has a content that is no text"
    return ""


def _config(file: Path) -> dict[str, Any]:
    """Read tokenizer_config.json; empty if there is none."""
    try:
        config = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        fix = "let this user read it, or get it again"
        raise DataError(f"{file}: can't be read: {error.strerror}\n    fix: {fix}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: is not JSON: {error}\n    fix: get the file again") from None
    if not isinstance(config, dict):
        raise DataError(f"{file}: is not a tokenizer's settings\n    fix: get the file again")
    return config


def _source(folder: Path, config: dict[str, Any]) -> tuple[Path, str]:
    """Return the file that holds the template, and the template."""
    file = folder / _FILE
    try:
        return file, file.read_text("utf-8")
    except FileNotFoundError:
        file = folder / _CONFIG
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: can't be read: {error}\n    fix: get the file again") from None
    template = config.get("chat_template")
    if isinstance(template, list):  # several, each with a name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
        if not isinstance(template, str):
            names = ", ".join(map(str, named)) or "none"
            fix = f"put the template to use into {folder / _FILE}"
            raise DataError(f"{file}: no chat template is named default, of: {names}\n    fix: {fix}")
    if not isinstance(template, str):
        fix = f"name the folder of a model that chats, put a template into {_FILE}, or leave --chat out"
        raise DataError(f"{folder}: has no chat template, in {_FILE} or {_CONFIG}\n    fix: {fix}")
    return file, template


def _spelled(token: Any) -> str:
    """Return a special token's text; the settings hold it as text, or as an object with its options."""
    return str(token.get("content", "") if isinstance(token, dict) else token)


def _now() -> datetime:
    """Return the time for templates that show the date: one instant for all samples of a call."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")  # reproducible-builds.org/docs/source-date-epoch
    if not epoch:
        return datetime.now()
    try:
        return datetime.fromtimestamp(int(epoch), UTC)
    except (ValueError, OverflowError, OSError):
        fix = "seconds since 1970, e.g. $(date +%s -d 2026-01-01), or unset it"
        raise DataError(f"$SOURCE_DATE_EPOCH = {epoch!r}: must be a number\n    fix: {fix}") from None


def _environment(now: datetime) -> "ImmutableSandboxedEnvironment":
    """Return a Jinja environment with transformers' options, filters and functions."""
    try:
        import jinja2
        from jinja2 import nodes
        from jinja2.ext import Extension, LoopControlExtension
        from jinja2.parser import Parser
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError:
        fix = "pip install jinja2, or make the streams where it is: hosts need only the streams"
        raise DataError(f"--chat: needs the package jinja2\n    fix: {fix}") from None

    class Generation(Extension):
        """`{% generation %}` marks the model's messages for training; rendered as its content."""

        tags = {"generation"}  # noqa: RUF012, as Extension declares it

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            inside = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(inside).set_lineno(line)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **form: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **form)  # Jinja's own is for HTML

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, Generation]
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": now.strftime}
    return environment
