"""Click commands as `tpu` uses them: examples in the help, words behind `--`, lazily imported parts."""

import contextlib
import difflib
import io
import re
import signal
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from infra.engine.pulumi import leave, run
from infra.errors import CommandError
from infra.settings.sources import INSTALLED

USAGE = 2
_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class Command(click.Command):
    """A command with examples, which may accept words behind `--`."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), words: str = "", **kwargs: Any) -> None:
        """Create a command.

        Args:
            *args: positional arguments of click.Command.
            examples: command lines without the path of the command.
            words: metavar of the words behind `--`, passed as the parameter `words`; empty: none.
            **kwargs: keyword arguments of click.Command.
        """
        kwargs["context_settings"] = _HELP | (kwargs.get("context_settings") or {})
        super().__init__(*args, **kwargs)
        self.examples, self._words = examples, words

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse options and arguments; keep the words behind `--` as they are."""
        if not self._words:
            return super().parse_args(ctx, args)
        cut = args.index("--") if "--" in args else len(args)
        try:
            extra = super().parse_args(ctx, args[:cut])
        except click.UsageError as error:
            unknown = cut == len(args) and isinstance(error, click.NoSuchOption)
            if unknown or "extra argument" in error.message:
                hint = f"{error.format_message()} Pass {self._words} after --."
                raise click.UsageError(hint, error.ctx) from None
            raise
        ctx.params["words"] = tuple(args[cut + 1 :])
        return extra

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Add the words behind `--` to the usage."""
        return super().collect_usage_pieces(ctx) + ([f"[-- {self._words} ...]"] if self._words else [])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, with the path that the command was called by."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    line, width = (
                        f"{ctx.command_path} {example}",
                        formatter.width - formatter.current_indent - 2,
                    )
                    rows = textwrap.wrap(line, width, break_on_hyphens=False, break_long_words=False)
                    for row in " \\\n  ".join(rows).splitlines():
                        formatter.write(f"{'':{formatter.current_indent}}{row}\n")


class Group(click.Group):
    """A group of `Command`s; subcommands may be named in a table and imported when used."""

    command_class = Command

    def __init__(
        self, *args: Any, sections: Mapping[str, Mapping[str, "Part"]] | None = None,
        renamed: Mapping[str, str] | None = None, **kwargs: Any,
    ):  # fmt: skip
        """Create a group.

        Args:
            *args: positional arguments of click.Group.
            sections: lazily imported subcommands by name, below the headings of the help.
            renamed: earlier and neighbouring names, with the command to suggest.
            **kwargs: keyword arguments of click.Group.
        """
        kwargs["context_settings"] = _HELP | (kwargs.get("context_settings") or {})
        super().__init__(*args, **kwargs)
        self._sections, self._renamed = sections or {}, renamed or {}
        self._parts = {name: part for parts in self._sections.values() for name, part in parts.items()}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a subcommand, imported if necessary."""
        part = self._parts.get(cmd_name)
        return part.load() if part else super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names. Raises UsageError with a suggestion."""
        name, known = args[0], self.list_commands(ctx)
        if name == "help":
            click.echo(ctx.get_help())
            ctx.exit()
        if name not in known and not name.startswith("-"):
            near = self._renamed.get(name) or nearest(name, known)
            fix = f"{ctx.command_path} {near}" if near else f"{ctx.command_path} --help lists them"
            raise UnknownCommandError(f"no command {name}\n    fix: {fix}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all subcommands, in the order of their declaration."""
        return [*self._parts, *self.commands]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section of subcommands for each heading."""
        if self.commands:
            rows = [(name, command.get_short_help_str(limit=200)) for name, command in self.commands.items()]
            with formatter.section("Commands"):
                formatter.write_dl(rows)
        for heading, parts in self._sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name, part.about) for name, part in parts.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a subcommand without importing any, or an option."""
        parts = [
            CompletionItem(name, help=part.about)
            for name, part in self._parts.items()
            if name.startswith(incomplete)
        ]
        return parts + super(click.Group, self).shell_complete(ctx, incomplete) if self._parts else (
            super().shell_complete(ctx, incomplete)
        )  # fmt: skip


class UnknownCommandError(click.UsageError):
    """An unknown command, with the one to use."""

    def show(self, file: object = None) -> None:
        """Print the message alone; the usage explains nothing here."""
        click.echo(f"error: {self.message}", err=True)


class Forwarded(click.Command):
    """A command with a parser of its own, which receives its words unread."""

    def __init__(self, name: str, main: Callable[[list[str]], int]):
        super().__init__(name, callback=lambda words: main(list(words)), add_help_option=False)
        self._main = main

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep every word."""
        ctx.params["words"] = tuple(args)
        return []

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete an option that the help of the command lists."""
        output = io.StringIO()
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(output):
            self._main([*ctx.params.get("words", ()), "--help"])
        options = sorted(set(re.findall(r"--[a-z][a-z-]*", output.getvalue())))
        return [CompletionItem(option) for option in options if incomplete and option.startswith(incomplete)]


@dataclass(frozen=True)
class Part:
    """A lazily imported command.

    Attributes:
        place: `module:attribute`.
        about: one line for the help.
    """

    place: str
    about: str

    def load(self) -> click.Command:
        """Import the command. Raises CommandError for one of a checkout alone."""
        module, _, attribute = self.place.partition(":")
        try:
            command: click.Command = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            if not INSTALLED or error.name != attribute:
                raise
            problem = f"the wheel has no package `{attribute}`"
            raise CommandError(f"{problem}\n    fix: cd into a clone of the repository") from None
        return command


def execute(command: click.Command, arguments: Sequence[str], name: str, root: Path) -> int:
    """Parse a command line, run the command and print its errors.

    Args:
        command: the command or group.
        arguments: the words behind the name.
        name: of the command in usage messages.
        root: the checkout; commands receive it by `click.pass_obj`.

    Returns:
        The exit status.
    """

    def invoke() -> int:
        with command.make_context(name, list(arguments), obj=root) as context:
            return int(command.invoke(context) or 0)

    try:
        return run(invoke)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.UsageError as error:
        error.show()
        return USAGE


def end_on_signals() -> None:
    """Exit on SIGTERM and SIGHUP as on Ctrl+C: a command prints what it leaves, and releases its lease."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as by nohup
            signal.signal(number, leave)


def nearest(name: str, known: Sequence[str]) -> str:
    """Return the known name that resembles `name` most; empty if none does."""
    return next(iter(difflib.get_close_matches(name, known, 1)), "")
