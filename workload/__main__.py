"""Command line `workload`.

    workload data prepare --source /usr/share/common-licenses --out /tmp/tokens
    DATA_DIR=/tmp/tokens workload train tiny.toml --dir /tmp/training
    workload checkpoints list /tmp/training/runs/tiny

Commands import late: JAX takes seconds, and the host's commands don't use it.
"""

import argparse
import importlib
import json
import logging
import os
import select
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from views.terminal import guard
from workload import NAME, __version__, as_typed, typed_as
from workload.arguments import Parser, add_set, local
from workload.data import command as streams
from workload.data import preparation
from workload.errors import ConfigError, WorkloadError
from workload.processor import leave_tpu_out
from workload.runs import location

_EXAMPLES = """examples:
  workload data prepare --source /usr/share/common-licenses --out /tmp/tokens
  DATA_DIR=/tmp/tokens workload train tiny.toml --dir /tmp/training
  workload train tiny.toml --set train.steps=200 --set model.layers=4 --name deeper
  workload checkpoints list gs://my-project-checkpoints/runs/tiny
  workload preflight llama-3.1-8b-v6e-256.toml --slice v6e-256
  workload host --help
"""

_INSTALL = (
    f"run it on a host or in a checkout after `make setup`; or install the wheel for training, "
    f"pip install 'tpu_workload-{__version__}-py3-none-any.whl[host]', which hatchling builds in a checkout"
)


def main(arguments: Sequence[str] | None = None, program: str = NAME) -> int:
    """Run a command line.

    Args:
        arguments: words of the command; by default those of the process.
        program: what the user has typed for `workload`.

    Returns:
        The exit status: 0 success, 1 failure, 2 usage error, 130 Ctrl-C, 141 closed pipe; 69 and 75 if
        another worker was lost or preempted, see `train.launch`.
    """
    guard()
    typed_as(program)
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["host"]:
        return _run("host", arguments[1:])
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        if arguments and arguments[0] in _COMMANDS:
            status = _run(arguments[0], arguments[1:])
        else:
            options = _parser().parse_args(arguments)
            status = int(options.command(options))
        sys.stdout.flush()
    except WorkloadError as error:
        print(f"workload: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("workload: interrupted; repeat the command to resume", file=sys.stderr, flush=True)
        return 130
    except MemoryError as error:
        fix = "use a machine with more memory, more workers, or a smaller model"
        print(f"workload: this machine's memory is too small: {error}\n    fix: {fix}", file=sys.stderr)
        return 1
    except RuntimeError as error:  # JAX's; it isn't imported for this
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        output = str(error).splitlines()[0]
        fix = "lower train.batch_size or extract.batch_tokens; check with `workload preflight`"
        print(f"workload: the chips' memory is too small: {output}\n    fix: {fix}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", NAME, "settings_schema", "views"):
            raise
        print(
            f"workload: this command needs {package}, which isn't installed\n    fix: {_INSTALL}",
            file=sys.stderr,
        )
        return 1
    except BrokenPipeError:
        if not _stdout_is_closed():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status


def entry() -> NoReturn:
    """Run `main` and exit with its status."""
    status = main()
    if status == 130:  # threads of a compiler may still be running, which would crash an orderly exit
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _stdout_is_closed() -> bool:
    """Return True if the reader of the output, such as `head`, has closed it."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


_Commands = argparse._SubParsersAction  # argparse has no public name for it


def _parser() -> Parser:
    def add(commands: "_Commands[Parser]", name: str, text: str, example: str = "") -> Parser:
        epilog = f"example:\n  {example}" if example else None
        raw = argparse.RawDescriptionHelpFormatter
        return commands.add_parser(name, help=text, description=text, epilog=epilog, formatter_class=raw)

    parser = Parser(
        prog=NAME,
        description="Train, extract and prepare data on the hosts of a slice.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"workload {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    example = "DATA_DIR=/tmp/tokens workload train tiny.toml --dir /tmp/training --set train.steps=20"
    train = add(commands, "train", "Train; resume from the newest complete checkpoint.", example)
    train.add_argument("config", metavar="CONFIG", help="a TOML file, or a packaged one (tiny.toml)")
    add_set(train)
    train.add_argument("--name", metavar="RUN", help="name of the run (default: the config's)")
    train.add_argument(
        "--dir",
        metavar="DIR",
        help="folder or bucket of runs/ (default: gs://$CHECKPOINT_BUCKET)",
    )
    text = "continue a run to a larger train.steps"
    train.add_argument("--extend", action="store_true", help=text)
    train.set_defaults(command=_train)

    example = "workload data prepare --source /usr/share/common-licenses --out /tmp/tokens"
    data = add(commands, "data", "Create token files.", example).add_subparsers(
        required=True, metavar="COMMAND"
    )
    prepare = add(data, "prepare", preparation.DESCRIPTION, preparation.EXAMPLES)
    preparation.add_arguments(prepare)
    prepare.set_defaults(command=preparation.main)
    split_streams = add(data, "streams", streams.DESCRIPTION, streams.EXAMPLES)
    streams.add_arguments(split_streams)
    split_streams.set_defaults(command=streams.main)

    text = "List, verify or export a run's checkpoints."
    example = "workload checkpoints list gs://my-project-checkpoints/runs/tiny"
    checkpoints = add(commands, "checkpoints", text, example).add_subparsers(required=True, metavar="COMMAND")
    listing = add(checkpoints, "list", "List the steps of the run's checkpoints.", example)
    listing.add_argument("run", metavar="RUN_URL", help="gs://BUCKET/runs/RUN, or a folder")
    listing.add_argument("--json", action="store_true", help="for programs")
    listing.set_defaults(command=_list)

    example = "workload checkpoints verify gs://my-project-checkpoints/runs/tiny"
    verify = add(checkpoints, "verify", "Read all checkpoints and report damage.", example)
    verify.add_argument("run", metavar="RUN_URL", help="gs://BUCKET/runs/RUN, or a folder")
    verify.add_argument("--step", type=int, metavar="N", help="a single step (default: all)")
    verify.add_argument("--json", action="store_true", help="for programs")
    verify.set_defaults(command=_verify)
    example = "workload checkpoints export gs://my-project-checkpoints/runs/tiny --out tiny-hf/"
    export = add(checkpoints, "export", "Write a checkpoint as Hugging Face weights.", example)
    export.add_argument("run", metavar="RUN_URL", help="gs://BUCKET/runs/RUN, or a folder")
    export.add_argument("--out", type=local, required=True, metavar="DIR", help="a new or empty folder")
    steps = "its step, or best (default: the newest)"
    export.add_argument("--step", type=_step_of, metavar="N", help=steps)
    export.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    merged = "a run of adapters: the whole model, with the adapters added to its weights"
    export.add_argument("--merged", action="store_true", help=merged)
    text = "base that PEFT opens: a folder or an id of the hub (default: the run's train.init_from)"
    export.add_argument("--base", type=lambda name: str(local(name)), metavar="MODEL", help=text)
    export.set_defaults(command=_export)

    example = "workload goodput gs://my-project-checkpoints/runs/tiny"
    goodput = add(commands, "goodput", "Show the accounts of a run's time, over all its starts.", example)
    goodput.add_argument("run", metavar="RUN_URL", help="gs://BUCKET/runs/RUN, or a folder")
    goodput.add_argument("--json", action="store_true", help="for programs; times in seconds")
    goodput.set_defaults(command=_goodput)

    for name, (_, text) in _COMMANDS.items():
        add(commands, name, as_typed(f"{text}; see `workload {name} --help`."))
    return parser


def _step_of(text: str) -> int | str:
    """Parse a step, or `best`. Raises argparse.ArgumentTypeError."""
    if text != "best" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: must be a step, or best\n    fix: --step 400")
    return text if text == "best" else int(text)


def _train(options: argparse.Namespace) -> int:
    from workload.host import chips
    from workload.host.heartbeat import Heartbeat
    from workload.train import config as configs

    with Heartbeat.of_host(os.environ, chips.readings) as heartbeat:
        leave_tpu_out()  # before a check of the optimizer's name imports JAX
        config = configs.load(options.config, options.overrides)
        run = options.name or Path(options.config).stem
        url, problems = location.of_run("runs", run, options.dir)
        if problems:
            raise ConfigError("workload train", problems)
        heartbeat.report(run=url)

        from workload.train.launch import launch

        return launch(config, run, url, os.environ, heartbeat, options.extend)


def _list(options: argparse.Namespace) -> int:
    from workload.runs.store import open_run
    from workload.train import best
    from workload.train.stored_steps import list_steps

    store = open_run(options.run)
    steps = list_steps(store)
    losses = best.read(store, steps.complete)
    chosen = best.choose(losses)
    if options.json:
        listed = {"complete": sorted(steps.complete), "incomplete": sorted(steps.incomplete)}
        print(json.dumps({**listed, "best": chosen}))
        return 0
    for step in sorted(steps.complete + steps.incomplete):
        verdict = "complete" if step in steps.complete else "incomplete: no marker, not used"
        loss = f", the best: {losses[step].loss:.6g} on held-out tokens" if step == chosen else ""
        print(f"{step:>8}  {verdict}{loss}")
    if not steps.complete:
        print(f"{options.run}: no complete checkpoint")
    return 0


def _use_host() -> None:
    """Select JAX's CPU platform: the chips may be busy, and a chip is too small for a whole state."""
    os.environ["JAX_PLATFORMS"] = "cpu"


def _verify(options: argparse.Namespace) -> int:
    _use_host()
    from workload.runs.store import open_run
    from workload.train.archive import verify

    checked = verify(open_run(options.run), options.step)
    status = 1 if any(step.problem for step in checked) else 0
    if options.json:
        print(json.dumps([{"step": step.step, "problem": step.problem, **step.digests} for step in checked]))
        return status
    for step in checked:
        verdict = "right, as the run ended" if step.as_ended else "readable, all values finite"
        print(f"{step.step:>8}  {step.problem or verdict}  {step.digests.get('params_sums_sha256', '')[:12]}")
    if not checked:
        print(f"{options.run}: no complete checkpoint")
    return status


def _export(options: argparse.Namespace) -> int:
    _use_host()
    from workload.runs.store import open_run
    from workload.train import best
    from workload.train.archive import export
    from workload.train.stored_steps import list_steps

    store, merged = open_run(options.run), options.merged
    step, files = export(store, options.out, options.step, options.dtype, print, merged, options.base)
    print(f"{options.out}: step {step}; {options.dtype} weights in {', '.join(files)}")
    losses = best.read(store, list_steps(store).complete)
    if (chosen := best.choose(losses)) not in (None, step):
        print(f"the best is step {chosen}, with {losses[chosen].loss:.6g} on held-out tokens: --step best")
    return 0


def _goodput(options: argparse.Namespace) -> int:
    from workload.runs.goodput import ACCOUNTS, read, summary
    from workload.runs.store import open_run

    total = summary(read(open_run(options.run)))
    if options.json:
        print(json.dumps({**vars(total), "goodput": total.goodput}))
        return 0
    if not total.starts:
        print(f"{options.run}: no start has stored its account yet")
        return 0
    explained = ACCOUNTS | {"lost": "repeated steps", "down": "between two starts"}
    print(f"{options.run}: {total.steps} steps in {total.starts} starts, {total.wall_s:.0f} s")
    for name, seconds in sorted(total.accounts_s.items(), key=lambda account: -account[1]):
        share = seconds / total.wall_s if total.wall_s else 0.0
        print(f"  {seconds:10.1f} s  {share:6.1%}  {name:<8} {explained[name]}")
    print(f"goodput {total.goodput:.1%}: share of the time in steps that weren't repeated")
    return 0


# Commands with a parser of their own: module and help.
_COMMANDS = {
    "extract": ("workload.extract.command", "Store a model's activations on a stream"),
    "launch": ("workload.place", "Start a program with its place in a job"),
    "secrets": ("workload.host.secret_variables", "Start a program with secrets in its environment"),
    "upload-curves": ("workload.runs.curves", "Copy a run's curves to Vertex AI TensorBoard or W&B"),
    "activations": ("workload.activations.command", "Inspect stored activations"),
    "preprocess": ("workload.preprocess.command", "Convert raw text to token files by Spark"),
    "preflight": ("workload.preflight.command", "Predict memory, speed and price of a run on a slice"),
    "host": ("workload.host.__main__", "Run a host's services"),
}


def _run(name: str, arguments: Sequence[str]) -> int:
    """Run a command that has its own parser."""
    if name == "extract":
        leave_tpu_out()
    module, _ = _COMMANDS[name]
    status: int = importlib.import_module(module).main(arguments)
    return status


if __name__ == "__main__":
    entry()
