"""Arguments that several commands share."""

import argparse
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from settings_schema.rules import SCHEME
from workload import as_typed
from workload.errors import ConfigError, Problem

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
"""A model of the Hugging Face hub; a relative path may look the same."""


class Parser(argparse.ArgumentParser):
    """Parser whose help names commands as the user types them; options are typed whole."""

    def __init__(self, **options: Any):
        texts = {name: options.get(name) for name in ("prog", "description", "epilog")}
        typed = {name: text and as_typed(text) for name, text in texts.items()}
        super().__init__(**options | typed | {"allow_abbrev": False})


def parser(program: str, description: str, examples: str) -> argparse.ArgumentParser:
    """Create the parser of a command; lines of `examples` are kept."""
    return Parser(
        prog=program,
        description=description,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def program(command: str, about: str, examples: str, arguments: Sequence[str]) -> list[str]:
    """Return the program that a command starts. Raises ConfigError if there is none."""
    options = parser(command, about, examples)
    options.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM …")
    line: list[str] = options.parse_args(list(arguments)).program
    line = line[1:] if line[:1] == ["--"] else line
    if not line or not shutil.which(line[0]):
        given = line[0] if line else "(nothing)"
        raise ConfigError(
            command, [Problem("program", given, "must be on PATH, or a path", examples.strip())]
        )
    return line


def local(text: str) -> Path:
    """Return the path of an option that takes no URL.

    Raises:
        argparse.ArgumentTypeError: it is a URL.
    """
    if SCHEME.match(text):
        fix = "a folder here; gcloud storage cp -r copies one from a bucket, tpu data put into it"
        raise argparse.ArgumentTypeError(f"{text}: must be a path of this machine\n    fix: {fix}")
    return Path(text)


def hub_fix(name: str, folder: Path) -> str:
    """Return the fix if `name`, as given, is an id of the hub without its `folder`; else empty."""
    if folder.exists() or name.endswith(".json") or not HUB_ID.fullmatch(name):
        return ""
    bucket = os.environ.get("CHECKPOINT_BUCKET")
    if bucket and "TPU_NAME" in os.environ:  # a host has neither the hub nor a place to keep a model
        return f"upload the model, tpu data put ENV FOLDER, and name gs://{bucket}/data/{folder.name}"
    return f"download a model of the hub first: hf download {name} --local-dir {folder}"


def add_set(parser: argparse.ArgumentParser) -> None:
    """Add `--set KEY=VALUE`, as `overrides`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override a setting of the file; repeatable",
    )


def chat_problems(options: argparse.Namespace) -> list[Problem]:
    """Return the problem of `--chat` with a tokenizer that has no template."""
    if not options.chat or options.tokenizer != "bytes":
        return []
    fix = "name the folder of a model that chats, or leave --chat out"
    return [Problem("--tokenizer", "bytes", "must have a chat template", fix)]


def lacking(options: argparse.Namespace, needed: str, *names: str) -> list[Problem]:
    """Return the problems of options that are given without the one that they belong to."""
    rule, fix = f"must come with --{needed}", f"add --{needed}, or leave it out"
    given = {name: getattr(options, name) for name in names}
    return [
        Problem(f"--{name.replace('_', '-')}", str(value), rule, fix)
        for name, value in given.items()
        if value is not None and value is not False and not getattr(options, needed)
    ]


def add_text(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for sources of text, their field and the tokenizer."""
    parser.add_argument(
        "--source", nargs="+", type=local, required=True, metavar="PATH", help="files or folders of text"
    )
    text = "a tokenizer.json or its folder, or bytes (default: bytes)"
    parser.add_argument(
        "--tokenizer", type=lambda name: str(local(name)), default="bytes", metavar="PATH", help=text
    )
    text = "field with the text in JSON lines and Parquet (default: text)"
    parser.add_argument("--field", default="text", metavar="NAME", help=text)
