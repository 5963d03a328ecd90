"""A tokenizer's chat template.

A template is a Jinja program beside a Hugging Face tokenizer. It is rendered like transformers'
`apply_chat_template` does (huggingface.co/docs/transformers/chat_templating), and
`tests/workload/test_chat.py` compares the two.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from settings_schema.parser import nearest
from workload.arguments import hub_fix
from workload.data.sources import whole
from workload.errors import DataError

if TYPE_CHECKING:
    from jinja2 import Template as JinjaTemplate
    from jinja2 import nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

_FILE, _CONFIG, _MAP = "chat_template.jinja", "tokenizer_config.json", "special_tokens_map.json"
_MARKS = ("\ue002", "\ue003")  # private to this module: begin and end of an answer
_MARK = re.compile(f"[{''.join(_MARKS)}]")
# Tokens that every tokenizer may have, and what else transformers gives to a template.
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt")
_TOLERANT = ("default", "d", "length", "count", "list", "join")  # filters of what may be undefined
ASSISTANT = "assistant"
_ANSWERS = re.compile(r"{%[-+]?\s*generation\b")


class ConversationError(DataError):
    """A conversation can't be rendered; others may be."""


class Template:
    """A tokenizer's chat template.

    Attributes:
        identity: differs where texts may.
        end: the tokenizer's eos_token, with which it ends an answer; empty: none.
    """

    def __init__(self, tokenizer: Path):
        """Read it from the tokenizer's folder.

        Raises:
            DataError: the template is missing, invalid, or names what nothing defines.
        """
        folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
        config = _config(folder / _CONFIG)
        file, source = _source(tokenizer, folder, config)
        now = _now()
        plain, marking = _environment(now), _environment(now, _MARKS)
        try:
            tree = plain.parse(source)
            self._template = plain.from_string(tree)
            self._marked = marking.from_string(source) if _ANSWERS.search(source) else None
        except Exception as error:  # an invalid template may fail in Jinja or in Python's compiler
            fix = "get the tokenizer's files again, or mend the template"
            raise DataError(f"{file}: the chat template doesn't parse: {error}\n    fix: {fix}") from None
        # special_tokens_map.json is of older repositories, as transformers reads them
        older = {} if "added_tokens_decoder" in config else _config(folder / _MAP)
        self._tokens = tokens = _named(config, older)
        self._absent = _absent(file, folder, tree, {*_VARIABLES, *tokens}, plain.globals)
        self.end = tokens.get("eos_token", "")
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
        return self._rendered(self._template, messages, prompted)

    def _rendered(self, template: "JinjaTemplate", messages: Sequence[Any], prompted: bool) -> str:
        # A null means an absent key: Parquet gives each message every key.
        output = [{key: value for key, value in message.items() if value is not None} for message in messages]
        known = {"messages": output, "tools": None, "documents": None, "add_generation_prompt": prompted}
        try:
            return whole(template.render(**known, **self._tokens, **self._absent))
        except DataError:
            raise
        except Exception as error:  # a template is a program and may raise anything
            raise ConversationError(f"is refused by the chat template: {error}") from None

    def answers(self, messages: Sequence[Any], text: str) -> list[tuple[int, int]]:
        """Return begin and end of each answer in the text of a conversation, rendered without a prompt.

        An answer is the text between the template's `{% generation %}` and `{% endgeneration %}`; where it
        has none, all that a message of the assistant adds to its prompt, up to the last visible character.

        Raises:
            ConversationError: an answer is empty, or can't be found in the text.
        """
        numbers = [n for n, message in enumerate(messages) if message["role"] == ASSISTANT]
        if not numbers or numbers[0] == 0:
            lacks = "begins with an answer" if numbers else f"has no message of role {ASSISTANT!r}"
            raise ConversationError(f"{lacks}: the loss needs questions with answers")
        for n in numbers:
            if not (messages[n].get("content") or "").strip() and not messages[n].get("tool_calls"):
                raise ConversationError(f"has an empty answer: message {n + 1}")
        if self._marked:
            marked = self._rendered(self._marked, messages, False)
            ends = [mark.start() - n for n, mark in enumerate(_MARK.finditer(marked))]
            if ends and len(ends) % 2 == 0 and _MARK.sub("", marked) == text:
                return list(zip(ends[::2], ends[1::2], strict=True))
            raise ConversationError("has no answer in the template's blocks {% generation %}")
        spans = []
        for n in numbers:
            before = self._rendered(self._template, messages[:n], True)
            after = (
                text if n + 1 == len(messages) else self._rendered(self._template, messages[: n + 1], False)
            )
            if not (text.startswith(before) and text.startswith(after) and len(before) < len(after)):
                raise ConversationError(
                    f"has an answer, message {n + 1}, that the template renders otherwise inside one:"
                    " mark answers in it by {% generation %} and {% endgeneration %}"
                )
            spans.append((len(before), len(after.rstrip())))
        return spans

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


def _source(tokenizer: Path, folder: Path, config: dict[str, Any]) -> tuple[Path, str]:
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
        fix = hub_fix(str(tokenizer), tokenizer) or fix
        raise DataError(f"{tokenizer}: has no chat template, in {_FILE} or {_CONFIG}\n    fix: {fix}")
    return file, template


def _named(config: dict[str, Any], older: dict[str, Any]) -> dict[str, str]:
    """Return the special tokens by name, as transformers 5 finds them; the settings name others besides."""
    standard = {name: older[name] for name in _TOKENS if name in older}
    known = {**older, **config, **standard}
    named = {name: known[name] for name in known if name.endswith("_token")}
    for extra in (config.get("extra_special_tokens"), older.get("extra_special_tokens")):
        named |= extra if isinstance(extra, dict) else {}
    # As text, or as an object with its options; add_bos_token is a switch.
    texts = {
        name: token.get("content") if isinstance(token, dict) else token for name, token in named.items()
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _absent(
    file: Path, folder: Path, tree: "nodes.Template", known: set[str], functions: Iterable[str]
) -> dict[str, Any]:
    """Return values of the variables that nothing defines: a template may test them, but not write them.

    Raises:
        DataError: the template writes one, and never tests it.
    """
    from jinja2 import Undefined, meta, nodes

    def names(node: nodes.Node) -> set[str]:
        return {name.name for name in nodes.Output([node]).find_all(nodes.Name)}

    def refusal(name: str) -> DataError:
        near = nearest(name, known)
        rule = f"the chat template writes {name}, which neither {_CONFIG} nor {_MAP} defines"
        fix = f"perhaps {near} was meant; or " if near else ""
        fix += f"name the token in {folder / _CONFIG}, or remove it from the template"
        return DataError(f"{file}: {rule}\n    fix: {fix}")

    class Absent(Undefined):
        def __str__(self) -> str:
            raise refusal(str(self._undefined_name))

    set_somewhere = {node.name for node in tree.find_all(nodes.Name) if node.ctx != "load"}
    set_somewhere |= {macro.name for macro in tree.find_all(nodes.Macro)}
    undefined = meta.find_undeclared_variables(tree) - set_somewhere - known.union(functions)
    written = map(names, tree.find_all((nodes.Output, nodes.Concat, nodes.Add)))
    asking = (nodes.Test, nodes.And, nodes.Or, nodes.Not, nodes.Compare)
    tests: list[nodes.Node] = [*tree.find_all(asking)]
    for node in tree.find_all((nodes.If, nodes.CondExpr)):
        tests += node.iter_child_nodes(only=("test",))
    for call in tree.find_all(nodes.Call):
        tests += call.iter_child_nodes(only=("args", "kwargs"))
    tests += [node for node in tree.find_all(nodes.Filter) if node.name in _TOLERANT]
    for name in sorted(undefined.intersection(set().union(*written)).difference(*map(names, tests))):
        raise refusal(name)
    return {name: Absent(name=name) for name in undefined}


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


def _environment(now: datetime, marks: tuple[str, str] = ("", "")) -> "ImmutableSandboxedEnvironment":
    """Return a Jinja environment with transformers' options, filters and functions.

    Args:
        now: time for templates that show the date.
        marks: written before and after what a template marks by `{% generation %}`.
    """
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
            begin, end = (nodes.Output([nodes.TemplateData(mark)]) for mark in marks)
            return nodes.Scope([begin, *inside, end]).set_lineno(line)

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
