"""What the parsers of several commands have in common."""

import argparse
from pathlib import Path


def parser(program: str, description: str, examples: str) -> argparse.ArgumentParser:
    """A room's own parser; examples are shown as they are written."""
    return argparse.ArgumentParser(
        prog=program,
        description=description,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_set(parser: argparse.ArgumentParser) -> None:
    """`--set KEY=VALUE`, as `overrides`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="a setting instead of the file's; may be given several times",
    )


def add_text(parser: argparse.ArgumentParser) -> None:
    """Where text comes from, what in it is read, and what turns it into tokens."""
    parser.add_argument(
        "--source", nargs="+", type=Path, required=True, metavar="PATH", help="files, folders"
    )
    text = "bytes, or a tokenizer.json, or the folder that holds one (default: bytes)"
    parser.add_argument("--tokenizer", default="bytes", metavar="PATH", help=text)
    text = "of JSON lines and Parquet, what holds the text (default: text)"
    parser.add_argument("--field", default="text", metavar="NAME", help=text)
