"""The `workload data streams` command."""

import argparse
from pathlib import Path

from views.counts import counted
from workload import command, print_progress
from workload.arguments import add_text, chat_problems, lacking
from workload.errors import ConfigError, Problem

DESCRIPTION = "Tokenize samples for extraction and split them into streams, one for each worker."
EXAMPLES = """workload data streams --source prompts.jsonl --tokenizer qwen/ --streams 8 --out streams/
  workload data streams --source chats.jsonl --field messages --chat --tokenizer qwen/ --out streams/
  workload data streams --source arc/training/ --arc --chat --tokenizer qwen/ --out streams/"""
_DEFAULT_AUGMENTATIONS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    add_text(parser)
    parser.add_argument("--out", required=True, metavar="URL", help="a folder, or gs://BUCKET/PREFIX")
    parser.add_argument("--streams", type=int, default=1, metavar="N", help="number of streams (default: 1)")
    text = "field of JSON lines and Parquet that names a sample (default: its place; of ARC lines, task_id)"
    parser.add_argument("--id", default="", metavar="NAME", help=text)
    text = "reject longer samples (default: any length)"
    parser.add_argument("--max-tokens", type=int, default=0, metavar="N", help=text)
    parser.add_argument(
        "--max-samples", type=int, default=0, metavar="N", help="limit of each stream, for a trial"
    )
    chat = parser.add_argument_group("conversations")
    text = "samples are lists of messages, or a user's text: apply the tokenizer's chat template"
    chat.add_argument("--chat", action="store_true", help=text)
    text = "system message for conversations that lack one"
    chat.add_argument("--system", metavar="TEXT", help=text)
    text = "omit the template's prompt for an answer after the last message"
    chat.add_argument("--no-generation-prompt", action="store_true", help=text)
    arc = parser.add_argument_group("ARC-AGI")
    text = "make prompts of tasks: .json files of one task or of many by name, or JSON lines"
    arc.add_argument("--arc", action="store_true", help=text)
    text = f"number per test input; 0: unchanged (default: {_DEFAULT_AUGMENTATIONS}, one a symmetry)"
    arc.add_argument("--augmentations", type=int, metavar="N", help=text)
    arc.add_argument("--seed", type=int, metavar="N", help="of the augmentations (default: 0)")


def main(options: argparse.Namespace) -> int:
    """Write the streams; return 0."""
    if problems := _problems(options):
        raise ConfigError("workload data streams", problems)

    from workload.data.arc import Tasks
    from workload.data.chat import Conversations
    from workload.data.sources import REJECTED, Reading, Sources
    from workload.data.split import SplitRules, split
    from workload.data.template import Template
    from workload.data.tokenizers import open_tokenizer
    from workload.runs.store import open_store

    tokenizer = open_tokenizer(options.tokenizer, templated=options.chat)
    reading: Reading
    if options.arc:
        looks = _DEFAULT_AUGMENTATIONS if options.augmentations is None else options.augmentations
        reading = Tasks(options.source, looks, options.seed or 0, options.id or "task_id")
    else:
        kinds = (str, list) if options.chat else (str,)
        reading = Sources(options.source, options.field, options.id, kinds)
    if options.chat:
        template = Template(Path(options.tokenizer))
        reading = Conversations(reading, template, options.system or "", not options.no_generation_prompt)
    out = open_store(options.out)
    rules = SplitRules(options.streams, options.max_tokens, options.max_samples)
    done = split(reading, out, tokenizer, rules, print_progress)
    following = command("extract", "CONFIG", "--stream", f"{out.url}/{done.streams[0]}", "--dir", "DIR")
    aside = ", ".join(f"{count} {reason}" for reason, count in done.rejected.items())
    unnamed = any(" name" in reason for reason in done.rejected)  # without a name, or with another's
    fix = "\n    fix: --id FIELD, unique in each row, or no --id: places are names then" if unnamed else ""
    note = "\ntokens are bytes; for a model that has a tokenizer of its own: --tokenizer FOLDER"
    print(
        f"{out.url}: {counted(done.samples, 'sample')}, {counted(done.tokens, 'token')}"
        f" in {counted(len(done.streams), 'stream')}"
        + (f"; rejected: {aside} ({out.url}/{REJECTED} names them){fix}" if aside else "")
        + (note if options.tokenizer == "bytes" else "")
        + f"\nnext: {following}"
    )
    return 0


def _problems(options: argparse.Namespace) -> list[Problem]:
    """Return the problems of the options."""
    problems = []
    for name, low, high in (
        ("streams", 1, 9999),
        ("max_tokens", 0, 2**31),
        ("max_samples", 0, 2**31),
        ("augmentations", 0, 10**6),
    ):
        value = getattr(options, name)
        if value is not None and not low <= value <= high:
            rule = f"must lie between {low} and {high}"
            problems.append(Problem(f"--{name.replace('_', '-')}", str(value), rule, f"e.g. {max(low, 8)}"))
    problems += chat_problems(options)
    problems += lacking(options, "chat", "system", "no_generation_prompt")
    problems += lacking(options, "arc", "augmentations", "seed")
    return problems
