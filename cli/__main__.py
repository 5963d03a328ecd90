"""`tpu COMMAND ENV …`: reads the command line, runs the command, and turns what went wrong into one message.

Exit status: 0 done · 1 failed · 2 usage · 130 interrupted · 141 the reader of the output has gone; a
subcommand's commands may have more (docs/cli.md).
"""

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from infra.engine.pulumi import run

Main = Callable[[list[str]], int]

USAGE, CLOSED_PIPE = 2, 141

_EPILOG = """\
examples:
  tpu plan dev                     what each layer would change, and what it costs
  tpu up dev                       apply it, after one question
  tpu run train.py --slice v6e-16  your own program, on a slice of its own
  tpu status dev --watch           nodes, steps, loss, price; until Ctrl+C
  tpu logs dev train --follow      what the job prints
  tpu recover dev                  recreate what Google preempted

exit status:
  0 done   1 failed   2 usage error   130 interrupted   141 output closed by its reader

docs/cli.md lists every command; Pulumi.ENV.yaml describes an environment.
"""

_RENAMED = {
    **dict.fromkeys(("preview",), "plan"),
    **dict.fromkeys(("apply", "deploy"), "up"),
    **dict.fromkeys(("destroy", "delete"), "down"),
    **dict.fromkeys(("recreate-preempted", "replace"), "recover"),
    **dict.fromkeys(("monitor", "watch"), "status ENV --watch"),
    **dict.fromkeys(("log",), "logs"),
    **dict.fromkeys(("login",), "ssh"),
    **dict.fromkeys(("rehearse",), "rehearsal run"),
    **{name: f"fleet {name}" for name in ("exec", "create", "list")},
    **{name: f"infra {name}" for name in ("settle", "prices", "roles")},
    **{
        name: f"workload {name}"
        for name in ("train", "extract", "activations", "checkpoints", "goodput", "data", "host")
    },
}
"""Earlier and neighbouring names, with today's command."""


def _fleet(command: str) -> Main:
    """A command of the fleet that stands at the top level here."""

    def main(arguments: list[str]) -> int:
        from fleet.__main__ import main as fleet

        return fleet([command, *arguments], prog="tpu")

    return main


def _update(command: str) -> Main:
    """Of `cli/updates.py`."""

    def main(arguments: list[str]) -> int:
        from cli import updates

        return {"plan": updates.plan, "up": updates.up, "down": updates.down}[command](arguments)

    return main


def _logs(arguments: list[str]) -> int:
    from cli import logs

    return logs.main(arguments)


def _run(arguments: list[str]) -> int:
    from cli.run import main as run_program

    return run_program(arguments)


def _job(arguments: list[str]) -> int:
    from cli.job import main as job

    return job(arguments)


def _builds(arguments: list[str]) -> int:
    from cli.builds import main as builds

    return builds(arguments)


def _pipeline(arguments: list[str]) -> int:
    from cli.pipeline import main as pipeline

    return pipeline(arguments)


def _policy(arguments: list[str]) -> int:
    from cli.policy import main as policy

    return policy(arguments)


def _status(arguments: list[str]) -> int:
    """Every slice once; with --watch again and again, in the terminal and with --port as a page."""
    if "--watch" not in arguments:
        return _fleet("status")(arguments)
    from fleet.__main__ import main as fleet

    return fleet(["monitor", *arguments], prog="tpu")


def _doctor(arguments: list[str]) -> int:
    """This machine, or with an environment also what would keep that from working."""
    if any(not word.startswith("-") for word in arguments):
        return _fleet("doctor")(arguments)
    from infra.doctor.machine import main as doctor

    return doctor(arguments)


def _publish(arguments: list[str]) -> int:
    from infra.publish.__main__ import main as publish

    return publish(arguments)


def _preflight(arguments: list[str]) -> int:
    return _workload(["preflight", *arguments])


def _subfleet(arguments: list[str]) -> int:
    from fleet.__main__ import main as fleet

    return fleet(arguments)


def _infra(arguments: list[str]) -> int:
    from infra.__main__ import main as infra

    return infra(arguments)


def _workload(arguments: list[str]) -> int:
    from workload.__main__ import main as workload

    return workload(arguments)


def _rehearsal(arguments: list[str]) -> int:
    from rehearsal.__main__ import main as rehearsal

    return rehearsal(arguments)


def _completion(arguments: list[str]) -> int:
    from cli.completion import main as completion

    return completion(arguments, [*COMMANDS, *SUBCOMMANDS])


COMMANDS: dict[str, tuple[Main, str]] = {
    "plan": (_update("plan"), "what each layer would change, and what it costs"),
    "up": (_update("up"), "bring layers up, after one question: stacks, the bundle, slices"),
    "down": (_update("down"), "take the slices down, or the layers named; checkpoints stay"),
    "run": (_run, "your own program on a slice: published, created, recovered; --stop-when-done"),
    "status": (_status, "every slice: state, boot stage, step, what would be done; --watch"),
    "logs": (_logs, "what boot and job printed, from Cloud Logging; --follow"),
    "ssh": (_fleet("ssh"), "log in to a worker, or run a command there"),
    "restart": (_fleet("restart"), "restart the job on all workers; the hosts keep running"),
    "recover": (_fleet("recover"), "recreate what Google preempted, and nothing else"),
    "policy": (_policy, "what of stored state, or a preview, breaks a rule; --terraform for other auditors"),
    "publish": (_publish, "build the bundle that hosts install, and upload it"),
    "preflight": (_preflight, "whether a training config fits a slice, how fast, at what price"),
    "doctor": (_doctor, "what is missing on this machine, or in an environment"),
    "completion": (_completion, "completion of commands and environments, for bash, zsh or fish"),
}
"""The commands, and what each does."""

SUBCOMMANDS: dict[str, tuple[Main, str]] = {
    "job": (_job, "jobs on a cluster's queue: submit, list, logs, cancel, tensorboard, image"),
    "pipeline": (_pipeline, "from submitted text to a training job: publish, run, status, retry, cost, …"),
    "builds": (_builds, "the layers by Cloud Build: render, submit"),
    "infra": (_infra, "one layer at a time; prices, roles, settle"),
    "fleet": (_subfleet, "fleets of equal slices: create, delete, deploy, monitor, exec, …"),
    "workload": (_workload, "what hosts run: train, extract, data, checkpoints, activations, goodput"),
    "rehearsal": (_rehearsal, "an emulated Google Cloud on this machine: run, shell, up, down, list"),
}
"""Programs with commands of their own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if words else USAGE
    name, *rest = words
    found = COMMANDS.get(name) or SUBCOMMANDS.get(name)
    if found is None:
        print(f"error: {unknown(name)}", file=sys.stderr)
        return USAGE
    status = run(lambda: found[0](rest))
    sys.stdout.flush()
    return status


def unknown(name: str) -> str:
    """What to say to a command that there isn't: the one that does it now, or the nearest."""
    if name in _RENAMED:
        return f"no command {name}\n    fix: tpu {_RENAMED[name]}"
    near = difflib.get_close_matches(name, [*COMMANDS, *SUBCOMMANDS], 1)
    return f"no command {name}\n    fix: {f'tpu {near[0]}' if near else 'tpu --help lists them'}"


def _help() -> str:
    parser = argparse.ArgumentParser(prog="tpu", add_help=False, usage="tpu COMMAND [ENV] …")
    width = max(map(len, [*COMMANDS, *SUBCOMMANDS]))
    lines = [f"  {name:<{width}}  {about}" for name, (_, about) in COMMANDS.items()]
    more = [f"  {name:<{width}}  {about}" for name, (_, about) in SUBCOMMANDS.items()]
    parts = [
        parser.format_usage().rstrip(),
        "",
        "commands:",
        *lines,
        "",
        "subcommands:",
        *more,
        "",
        _EPILOG.rstrip(),
    ]
    return "\n".join(parts)


def entry() -> NoReturn:
    """The program: `main` and its exit."""
    try:
        sys.exit(main())
    except BrokenPipeError:
        # Whoever read the output has seen enough, as `head` does; Python would complain at exit.
        _drop_output()
        sys.exit(CLOSED_PIPE)
    except OSError as error:  # a full disk, for one
        _drop_output()
        print(f"error: the output can't be written: {error.strerror}", file=sys.stderr)
        sys.exit(1)


def _drop_output() -> None:
    """What is still buffered would fail again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    entry()
