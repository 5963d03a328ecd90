"""The `workload data prepare` command."""

import argparse
import shlex
from pathlib import Path

from workload import command, print_progress
from workload.arguments import add_text, chat_problems, lacking, local
from workload.errors import ConfigError, Problem

DESCRIPTION = "Pack text, JSON lines or Parquet into token files, deterministically."
EXAMPLES = """workload data prepare --source c4/ --tokenizer llama-3.1-8b/ --out tokens/
  workload data prepare --source chats.jsonl --chat --tokenizer llama-3.1-8b/ --out chats/"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    add_text(parser)
    parser.add_argument("--out", type=local, required=True, metavar="DIR", help="a new or unfinished folder")
    text = "token that ends a document, if its name is unusual"
    parser.add_argument("--end", default="", metavar="TOKEN", help=text)
    chat = parser.add_argument_group("conversations and instructions")
    text = (
        "rows hold messages (or --field), prompt and completion, or instruction, input and output: apply the"
        " tokenizer's chat template; answers alone count for the loss"
    )
    chat.add_argument("--chat", action="store_true", help=text)
    text = "system message for conversations that lack one"
    chat.add_argument("--system", metavar="TEXT", help=text)
    text = "cut conversations after N tokens (default: whole)"
    chat.add_argument("--truncate", type=int, metavar="N", help=text)


def main(options: argparse.Namespace) -> int:
    """Write the token files; return 0."""
    if problems := _problems(options):
        raise ConfigError("workload data prepare", problems)

    from workload.data.chat import OTHERS, Conversations, instruction
    from workload.data.prepare import prepare
    from workload.data.sources import REJECTED, Sources
    from workload.data.template import Template
    from workload.data.tokenizers import open_tokenizer

    chats: Conversations | None = None
    end = options.end
    if options.chat:
        field = "messages" if options.field == "text" else options.field
        template = Template(Path(options.tokenizer))
        end = end or template.end
        rows = Sources(options.source, field, kinds=(list,), others=OTHERS, otherwise=instruction)
        chats = Conversations(rows, template, options.system or "", prompted=False, answers=True)
    tokenizer = open_tokenizer(options.tokenizer, end, templated=options.chat)
    summary = prepare(
        options.source,
        options.out,
        tokenizer,
        options.field,
        progress=print_progress,
        chats=chats,
        max_tokens=options.truncate or 0,
    )
    if summary.rejected:
        print(f"rejected: {summary.reasons()}; {options.out / REJECTED} names each")
    for sample in summary.passed_over:
        print(f"  {sample.where}: {sample.problem}")
    if summary.cut:
        print(f"{summary.cut} conversations were cut to {options.truncate} tokens")
    out = shlex.quote(str(options.out))
    following = f"DATA_DIR={out} {command('train', 'tiny.toml', '--dir', '/tmp/training')}"
    if chats:  # a model of their tokenizer's vocabulary trains on a slice
        following = f"tpu data put ENV {out}, then train llama-3.1-8b-sft.toml with the URL that it prints"
    kind = "conversations" if chats else "documents"
    print(
        f"{options.out}: {summary.documents} {kind}, {summary.tokens} tokens;"
        f" {summary.repeated} repeat another and are left out\n"
        f"next: {following}"
    )
    return 0


def _problems(options: argparse.Namespace) -> list[Problem]:
    """Return the problems of the options."""
    problems = [*chat_problems(options), *lacking(options, "chat", "system", "truncate")]
    if options.truncate is not None and options.truncate < 2:
        problems.append(Problem("--truncate", str(options.truncate), "must be at least 2", "e.g. 8193"))
    return problems
