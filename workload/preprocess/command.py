"""The `workload preprocess` command."""

import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from workload import arguments as arguments_of
from workload import command, print_progress
from workload.data.tokenizers import Tokenizer, open_tokenizer
from workload.errors import ConfigError, DataError, Problem, RunError
from workload.preprocess import config as configs
from workload.preprocess import session
from workload.runs.errors import MissingObjectError

_EXAMPLES = """  workload preprocess text.toml --local --set input.sources=docs --set output.url=/tmp/tokens
  workload preprocess books.toml --master local[4] --set output.shards=256
  spark-submit --py-files workload.zip batch.py gs://my-project-raw/books.toml"""
# A Python exception's name and text inside Java's traceback, up to an empty line or Java's own stack.
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception): .*?)(?=\n\s*\n|\n\tat )", re.M | re.S)
_SETTINGS_OF_TOKENIZERS = "tokenizer_config.json"


def main(arguments: Sequence[str]) -> int:
    """Run a command line; return 0 once the run is ready, by this start or an earlier one."""
    description = "Turn raw text into token files by Spark, reproducibly; resume an interrupted run."
    parser = arguments_of.parser("workload preprocess", description, _EXAMPLES)
    text = "a TOML file, gs://BUCKET/OBJECT, or a packaged one (text.toml)"
    parser.add_argument("config", metavar="CONFIG", help=text)
    arguments_of.add_set(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--local", action="store_true", help="use all cores of this machine")
    text = "Spark's master, e.g. local[2] (default: set by spark-submit or the service)"
    where.add_argument("--master", default="", metavar="URL", help=text)
    text = "a Spark property; repeatable"
    parser.add_argument("--conf", action="append", default=[], metavar="spark.KEY=VALUE", help=text)
    options = parser.parse_args(arguments)
    config = configs.load(options.config, options.overrides)
    script = _script(config.filters.script)
    with _tokenizer(config.tokenizer) as tokenizer:
        _ = (
            tokenizer.end_of_document,
            tokenizer.begin_of_document,
        )  # fail early if missing
        master = options.master or ("local[*]" if options.local else "")
        return _run(config, tokenizer, script, master, options.conf)


def _run(
    config: configs.Config, tokenizer: Tokenizer, script: bytes, master: str, properties: Sequence[str]
) -> int:
    context = session.begin(master, properties, "workload preprocess")
    from py4j.protocol import Py4JJavaError

    from workload.preprocess import job

    interrupted = False
    try:
        print_progress(f"Spark {context.version}, {context.master}, {context.defaultParallelism} cores")
        plan = job.plan(context, config, tokenizer, script)
        size_mb = sum(item.size_bytes for item in plan.inputs) / 1e6
        print_progress(f"run {plan.run}: {len(plan.inputs)} files, {size_mb:.1f} MB")
        summary = job.run(context, plan, print_progress)
    except Py4JJavaError as error:
        raise _given_up(str(error)) from None
    except KeyboardInterrupt:
        interrupted = True  # amid a call to Java, which accepts no other, and ends with this process
        raise
    finally:
        if not interrupted:
            context.stop()
    _report(summary.manifest)
    rest = f"{summary.made} of {config.output.shards} shards made here" if summary.made else ""
    print(f"{summary.url}: {rest or 'was ready, nothing to do'}")
    if not summary.manifest["examples"]:
        print(f"no shard is longer than {config.output.sequence_length} tokens: lower output.shards")
    if not summary.url.startswith("gs://"):
        train = command("train", "tiny.toml", "--dir", "/tmp/training")
        print(f"next: DATA_DIR={shlex.quote(summary.url)} {train}")
    return 0


def _report(manifest: dict[str, object]) -> None:
    reasons = manifest["rejected"]
    assert isinstance(reasons, dict)
    rejected = "; ".join(f"{count} × {reason}" for reason, count in reasons.items())
    if rejected:
        print(f"rejected: {rejected}; rejected-*.jsonl names each")
    print(f"{manifest['documents']} documents, {manifest['tokens']} tokens, {manifest['examples']} examples")


def _script(name: str) -> bytes:
    """Return the content of filters.script. Raises ConfigError, and DataError if it lacks `documents`."""
    if not name:
        return b""
    from workload.preprocess.script import load

    try:
        source = configs.fetched(name) if name.startswith("gs://") else Path(name).read_bytes()
    except OSError as error:
        rule, fix = f"can't be read: {error.strerror}", "name a Python file"
        raise ConfigError("workload preprocess", [Problem("filters.script", name, rule, fix)]) from None
    load(source, name.rpartition("/")[2])
    return source


@contextmanager
def _tokenizer(config: configs.TokenizerConfig) -> Iterator[Tokenizer]:
    """Open the tokenizer, local or in a bucket."""
    if not config.name.startswith("gs://"):
        yield open_tokenizer(config.name, config.end)
        return
    url = config.name if config.name.endswith(".json") else f"{config.name.rstrip('/')}/tokenizer.json"
    folder_url = url.rpartition("/")[0]
    with tempfile.TemporaryDirectory(prefix="preprocess-") as folder:
        inside = Path(folder, folder_url.rpartition("/")[2])
        inside.mkdir()
        try:
            (inside / "tokenizer.json").write_bytes(configs.fetched(url))
        except MissingObjectError:
            fix = "name a tokenizer.json, or the prefix that holds one"
            raise DataError(f"tokenizer.name = {config.name}: no such object\n    fix: {fix}") from None
        with suppress(MissingObjectError):
            (inside / _SETTINGS_OF_TOKENIZERS).write_bytes(
                configs.fetched(f"{folder_url}/{_SETTINGS_OF_TOKENIZERS}")
            )
        yield open_tokenizer(str(inside), config.end)


def _given_up(text: str) -> RunError:
    """Return the last exception of the task that failed."""
    exceptions = _EXCEPTION.findall(text)
    reason = exceptions[-1] if exceptions else text.strip().splitlines()[-1]
    return RunError(f"Spark gave up: {reason}\n    fix: start again; finished shards are kept")
