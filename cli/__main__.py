"""Run `tpu COMMAND ENV …`: parse the command line, run the command, print errors.

Exit status: 0 done · 1 failed · 2 usage · 130 interrupted · 141 the output was closed by its reader; a
subcommand's commands may have more (docs/reference/cli.md).
"""

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from click.shell_completion import shell_complete

from cli import log
from cli.command import Group, Part, execute
from cli.completion import VARIABLE
from infra.settings.sources import ROOT
from views.terminal import guard, unguarded

INTERRUPTED, CLOSED_PIPE = 130, 141

_EPILOG = """\b
Examples:
  tpu plan dev                     changes of each layer, and their price
  tpu up dev                       apply them after one question
  tpu run train.py --slice v6e-16  your own program, on a slice of its own
  tpu status dev --watch           nodes, steps, loss, price; until Ctrl+C
  tpu logs dev train --follow      output of the job
  tpu recover dev                  recreate preempted slices

\b
Exit status:
  0 done   1 failed   2 usage error   130 interrupted   141 output closed by its reader

docs/reference/cli.md lists every command; Pulumi.ENV.yaml describes an environment.
"""

_RENAMED = {
    "preview": "plan", "apply": "up", "deploy": "up", "destroy": "down", "delete": "down",
    "recreate-preempted": "recover", "replace": "recover", "monitor": "status ENV --watch",
    "watch": "status ENV --watch", "log": "logs", "login": "ssh", "rehearse": "rehearsal run",
    **{name: f"fleet {name}" for name in ("exec", "create", "list")},
    **{name: f"infra {name}" for name in ("settle", "prices", "roles")},
    **{
        name: f"workload {name}"
        for name in ("train", "extract", "activations", "checkpoints", "goodput", "host")
    },
}  # fmt: skip
"""Earlier and neighbouring names, with today's command."""


COMMANDS = {
    "plan": Part("cli.updates:plan", "show the changes of each layer, and their price"),
    "up": Part("cli.updates:up", "apply the plan after one question: layers, the bundle, slices"),
    "down": Part("cli.updates:down", "destroy the slices, or the named layers; checkpoints stay"),
    "run": Part("cli.run:run", "run your own program on a slice: publish, create, recover; --stop-when-done"),
    "status": Part("cli.fleet:status", "show every slice: state, boot stage, step, next action; --watch"),
    "logs": Part("cli.logs:logs", "print output of boot and job from Cloud Logging; --follow"),
    "tensorboard": Part("cli.tensorboard:tensorboard", "show the curves of a run, or of all, in TensorBoard"),
    "ssh": Part("cli.fleet:ssh", "log in to a worker, run a command there, or forward ports"),
    "restart": Part("cli.fleet:restart", "restart the job on all workers; the hosts keep running"),
    "recover": Part("cli.fleet:recover", "recreate slices that Google preempted or deleted"),
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
    "runs": Part("cli.runs:runs", "list training runs with loss, goodput and cost; show one or compare two"),
    "data": Part("cli.data:data", "upload text, tokens and weights to the bucket, or make a data snapshot"),
    "job": Part("cli.job:job", "manage jobs of a GKE queue: submit, list, logs, cancel, image"),
    "pipeline": Part(
        "cli.pipeline:pipeline", "turn text into a training job: publish, run, status, retry, cost, …"
    ),
    "slurm": Part("cli.slurm:slurm", "manage jobs of a Slurm cluster: submit, status, cancel, logs, ssh"),
    "builds": Part("cli.builds:builds", "run layers in Cloud Build: render, submit"),
    "infra": Part("cli.infra:infra", "manage one layer; print prices and roles; settle after a kill"),
    "fleet": Part("cli.fleet:fleet", "manage fleets of equal slices: create, delete, monitor, exec, …"),
    "workload": Part(
        "cli.workload:workload", "run a workload program: train, extract, data, checkpoints, goodput, …"
    ),
    "rehearsal": Part("cli.rehearsal:rehearsal", "emulate Google Cloud on this machine: run, shell, up, …"),
}
"""Programs with commands of their own."""


tpu = Group(
    "tpu",
    help="Run JAX workloads on Cloud TPU slices: infrastructure, fleets, programs.",
    sections={"Commands": COMMANDS, "Subcommands": SUBCOMMANDS},
    renamed=_RENAMED,
    epilog=_EPILOG,
)
log.option(tpu)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run a command line on the checkout at `root`; return the exit status."""
    guard()
    if isinstance(stdout := unguarded(sys.stdout), TextIOWrapper):
        stdout.reconfigure(line_buffering=True)  # a pipe has each line at once, in order with stderr's
    status = execute(tpu, sys.argv[1:] if arguments is None else arguments, "tpu", root)
    sys.stdout.flush()
    return status


def entry() -> NoReturn:
    """Run the program: complete a word if a shell requests it, else run `main` and exit."""
    if instruction := os.environ.get(VARIABLE):
        sys.exit(shell_complete(tpu, {}, "tpu", VARIABLE, instruction))
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # before a command began, or after it
        sys.exit(INTERRUPTED)
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
