"""Run `tpu COMMAND ENV …`: parse the command line, run the command, print errors.

Exit status: 0 done · 1 failed · 2 usage · 130 interrupted · 141 the output was closed by its reader; a
subcommand's commands may have more (docs/cli.md).
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click
from click.shell_completion import shell_complete

from cli.command import Group, Part, execute, nearest
from cli.completion import VARIABLE
from infra.settings.sources import ROOT

CLOSED_PIPE = 141

_EPILOG = """\b
Examples:
  tpu plan dev                     what each layer would change, and what it costs
  tpu up dev                       apply it, after one question
  tpu run train.py --slice v6e-16  your own program, on a slice of its own
  tpu status dev --watch           nodes, steps, loss, price; until Ctrl+C
  tpu logs dev train --follow      what the job prints
  tpu recover dev                  recreate what Google preempted

\b
Exit status:
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


COMMANDS = {
    "plan": Part("cli.updates:plan", "show what each layer would change, and what it costs"),
    "up": Part("cli.updates:up", "bring layers up, after one question: stacks, the bundle, slices"),
    "down": Part("cli.updates:down", "take the slices down, or the layers named; checkpoints stay"),
    "run": Part("cli.run:run", "run your own program on a slice: publish, create, recover; --stop-when-done"),
    "status": Part("cli.fleet:status", "show every slice: state, boot stage, step, next action; --watch"),
    "logs": Part("cli.logs:logs", "print output of boot and job from Cloud Logging; --follow"),
    "ssh": Part("cli.fleet:ssh", "log in to a worker, or run a command there"),
    "restart": Part("cli.fleet:restart", "restart the job on all workers; the hosts keep running"),
    "recover": Part("cli.fleet:recover", "recreate preempted slices, and nothing else"),
    "policy": Part(
        "cli.policy:policy", "check stored state or a preview against the rules; --terraform exports"
    ),
    "publish": Part("cli.publish:publish", "build the bundle that hosts install, and upload it"),
    "preflight": Part(
        "cli.workload:preflight", "check that a training config fits a slice; predict speed and price"
    ),
    "doctor": Part("cli.fleet:doctor", "report problems of this machine, or of an environment"),
    "completion": Part("cli.completion:completion", "print the completion script for bash, zsh or fish"),
}
"""The commands."""

SUBCOMMANDS = {
    "job": Part("cli.job:job", "jobs on a cluster's queue: submit, list, logs, cancel, tensorboard, image"),
    "pipeline": Part(
        "cli.pipeline:pipeline", "from text to a training job: publish, run, status, retry, cost, …"
    ),
    "builds": Part("cli.builds:builds", "the layers by Cloud Build: render, submit"),
    "infra": Part("cli.infra:infra", "one layer at a time; prices, roles, settle"),
    "fleet": Part("cli.fleet:fleet", "fleets of equal slices: create, delete, deploy, monitor, exec, …"),
    "workload": Part(
        "cli.workload:workload", "programs on hosts: train, extract, data, checkpoints, activations, goodput"
    ),
    "rehearsal": Part(
        "cli.rehearsal:rehearsal", "an emulated Google Cloud on this machine: run, shell, up, …"
    ),
}
"""Programs with commands of their own."""


class _Tpu(Group):
    """The group of all commands, which suggests today's name for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names. Raises UsageError with a suggestion."""
        if args[0] == "help":
            click.echo(ctx.get_help())
            ctx.exit()
        if args[0] not in {**COMMANDS, **SUBCOMMANDS} and not args[0].startswith("-"):
            raise UnknownCommandError(args[0])
        return super().resolve_command(ctx, args)


class UnknownCommandError(click.UsageError):
    """An unknown command, with the one to use."""

    def __init__(self, name: str):
        near = _RENAMED.get(name) or nearest(name, [*COMMANDS, *SUBCOMMANDS])
        super().__init__(f"no command {name}\n    fix: {f'tpu {near}' if near else 'tpu --help lists them'}")

    def show(self, file: object = None) -> None:
        """Print the message alone: the usage of `tpu` explains nothing here."""
        click.echo(f"error: {self.message}", file=sys.stderr)


tpu = _Tpu(
    "tpu",
    help="Run JAX workloads on Cloud TPU slices: infrastructure, fleets, programs.",
    sections={"Commands": COMMANDS, "Subcommands": SUBCOMMANDS},
    epilog=_EPILOG,
)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run a command line on the checkout at `root`; return the exit status."""
    status = execute(tpu, sys.argv[1:] if arguments is None else arguments, "tpu", root)
    sys.stdout.flush()
    return status


def entry() -> NoReturn:
    """Run the program: complete a word if a shell requests it, else run `main` and exit."""
    if instruction := os.environ.get(VARIABLE):
        sys.exit(shell_complete(tpu, {}, "tpu", VARIABLE, instruction))
    try:
        sys.exit(main())
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does; Python would complain at exit.
        _drop_output()
        sys.exit(CLOSED_PIPE)
    except OSError as error:  # a full disk, for one
        _drop_output()
        print(f"error: the output can't be written: {error.strerror}", file=sys.stderr)
        sys.exit(1)


def _drop_output() -> None:
    """Discard buffered output, which would fail again when Python exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    entry()
