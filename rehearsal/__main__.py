"""`tpu rehearsal`: the commands.

Exit status: 0 passed · 1 the scenario failed · 2 usage or scenario error · 3 the world can't be made or
entered · 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from rehearsal.cloud.control import Control
from rehearsal.errors import RehearsalError, ScenarioError
from rehearsal.scenario import cast
from rehearsal.scenario import scenario as scenarios
from rehearsal.scenario.record import Record
from rehearsal.scenario.report import write_picture
from rehearsal.world import life, making, person
from rehearsal.world.console import Narrator
from rehearsal.world.layout import Layout, State, cache_dir

FAILED, USAGE, NO_WORLD, INTERRUPTED = 1, 2, 3, 130

_EXAMPLES = """examples:
  tpu rehearsal run                     the default scenario: four stacks, four hosts, two preemptions
  tpu rehearsal run kills --seed 7      another scenario, with an earlier run's seed
  tpu rehearsal run my.py --keep      one of your own; afterwards the world stays up for a look around
  tpu rehearsal shell                   a shell in the world that is up, or in a fresh one
  tpu rehearsal shell -c 'pulumi preview -s dev'
  tpu rehearsal up; tpu rehearsal status; tpu rehearsal down

exit status:
  0 passed   1 the scenario failed   2 wrong command line or scenario   3 no world   130 interrupted

docs/rehearsal.md says what is real in there, what is emulated, and how to write a scenario.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the command line's parser; docs/rehearsal.md shows its help."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="tpu rehearsal",
        description="An emulated Google Cloud on this machine, with hosts that boot. Needs root.",
        epilog=_EXAMPLES,
        formatter_class=raw,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a scenario and write a report")
    run.add_argument(
        "scenario", nargs="?", default="default", help="a name of `list` or a file (default: default)"
    )
    run.add_argument("--report", type=Path, default=Path("rehearsal-report"), help="folder for the report")
    run.add_argument("--seed", type=int, help="draw the random moments from this number")
    run.add_argument("--keep", action="store_true", help="leave the world up afterwards")

    up = commands.add_parser("up", help="make a world and leave it up")
    shell = commands.add_parser("shell", help="a shell in the world that is up, or else in a fresh one")
    shell.add_argument("-c", dest="line", metavar="CMD", help="run this instead of an interactive shell")
    shell.add_argument(
        "--as",
        dest="account",
        choices=person.PEOPLE,
        default="platform-engineer",
        help="who types (%(default)s)",
    )
    for command in (run, up, shell):
        command.add_argument(
            "--plugins", type=Path, metavar="DIR", help="folder with the official gcp provider plugin"
        )
    for command in (up, shell):
        command.add_argument("--env", default="dev", help="environment of a fresh world (default: dev)")
        command.add_argument(
            "--clock", type=_rate, default=20.0, help="its virtual seconds a second (default: 20)"
        )
    down = commands.add_parser("down", help="end the world that is up and remove its folder")
    status = commands.add_parser("status", help="what is up: nodes, hosts, requests, faults")
    boards = commands.add_parser("dashboards", help="the dashboards of the world that is up, as a page")
    boards.add_argument("--hours", type=_rate, default=6.0, help="of its clock, until now (default: 6)")
    boards.add_argument("--out", type=Path, default=Path("dashboards.html"), help="(dashboards.html)")
    for command in (run, up, shell, down, status, boards):
        command.add_argument("--dir", type=Path, help="the world's folder (default: one in the cache folder)")
    listing = commands.add_parser("list", help="the scenarios that come with the project")
    for command in (status, listing):
        command.add_argument("--json", action="store_true", help="for programs")
    picture = commands.add_parser("picture", help="draw the losses of a report, or a recording, as SVG")
    picture.add_argument("source", type=Path, help="record.json of a report, or a .cast of its logs")
    picture.add_argument("--out", type=Path, help="(docs/pictures/loss.svg, of a recording recovery.svg)")
    return parser


def _rate(word: str) -> float:
    """As a scenario's `clock`: time that stood still would let nothing end."""
    rate = float(word)
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(f"{word} is not a positive number")
    return rate


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; errors are said in words, never as a traceback."""
    arguments = build_parser().parse_args(words)
    narrator = Narrator()
    command = {
        "run": _run, "up": _up, "shell": _shell, "down": _down, "status": _status, "list": _list,
        "picture": _picture, "dashboards": _dashboards,
    }[arguments.command]  # fmt: skip
    signal.signal(signal.SIGTERM, _as_interrupt)
    signal.signal(signal.SIGHUP, _as_interrupt)
    try:
        return command(arguments, narrator)
    except RehearsalError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.fix:
            print(f"  fix: {error.fix}", file=sys.stderr)
        return USAGE if isinstance(error, ScenarioError) else NO_WORLD
    except OSError as error:  # a full disk, a folder that is somebody else's
        print(f"error: {error}", file=sys.stderr)
        return NO_WORLD
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _as_interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _kept(arguments: argparse.Namespace) -> Layout:
    """Return the layout of `up`'s world, unless --dir names another."""
    return Layout((arguments.dir or cache_dir() / "world").resolve())


@contextmanager
def _world(layout: Layout, plan: making.Plan, narrator: Narrator, *, keep: bool) -> Iterator[State]:
    """Make a world that ends with the block, unless it is to be kept and came up."""
    life.require_machine()
    life.require_free(layout)
    stored = False
    try:
        environment = making.make(layout, plan, narrator)
        with narrator.step("start the emulated cloud"):
            state = life.launch(layout, environment, ephemeral=not keep)
        making.seed(layout, plan)
        stored = keep
        yield state
    finally:
        if not stored:
            # A second Ctrl+C must not leave half of it behind; programs that are started inherit this.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            with narrator.step("clean up"):
                life.end(layout)


def _fresh(arguments: argparse.Namespace, narrator: Narrator, name: str) -> Layout:
    if arguments.dir:
        return Layout(arguments.dir.resolve())
    life.require_machine()  # before there is a folder that nobody would remove
    folder = cache_dir() / "worlds"
    folder.mkdir(parents=True, exist_ok=True)
    for dead in life.left_behind(folder):
        with suppress(RehearsalError), narrator.step(f"remove {dead.root}, whose command was killed"):
            life.remove(dead)
    return Layout(Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder)))


def _run(arguments: argparse.Namespace, narrator: Narrator) -> int:
    scenario = scenarios.load(scenarios.find(arguments.scenario), arguments.seed)
    layout = _kept(arguments) if arguments.keep else _fresh(arguments, narrator, "run")
    plan = making.Plan(
        environment=scenario.environment,
        cloud=scenario.cloud,
        seed=scenario.seed or 0,
        plugins=arguments.plugins,
        text=scenario.text,
        settings=scenario.settings,
        control_planes=scenario.control_planes,
        runtimes=scenario.runtimes,
        locks=scenario.locks,
        prepare=scenario.prepare,
    )
    report = arguments.report.resolve()
    report.mkdir(parents=True, exist_ok=True)
    narrator.line(f"{scenario.title}  (seed {scenario.seed})")
    with _world(layout, plan, narrator, keep=arguments.keep) as state:
        command = [sys.executable, "-m", "rehearsal.scenario", str(scenario.path.resolve())]
        command += ["--seed", str(scenario.seed), "--report", str(report)]
        try:
            return life.run_inside(layout, state, command, owns_interrupts=False)
        finally:
            if arguments.keep:
                narrator.line(f"the world is still up: tpu rehearsal shell --dir {layout.root}")


def _up(arguments: argparse.Namespace, narrator: Narrator) -> int:
    layout = _kept(arguments)
    with _world(layout, _plan(arguments), narrator, keep=True):
        where = f" --dir {layout.root}" if arguments.dir else ""
        narrator.line(f"up in {layout.root}\nnext: tpu rehearsal shell{where}   (and, one day, down)")
    return 0


def _plan(arguments: argparse.Namespace) -> making.Plan:
    return making.Plan(
        environment=arguments.env,
        cloud={"clock_rate": arguments.clock},
        plugins=arguments.plugins,
        control_planes=True,
    )


def _shell(arguments: argparse.Namespace, narrator: Narrator) -> int:
    stored = _kept(arguments)
    state = State.load(stored.state)
    if state and state.alive:
        return _enter(stored, state, arguments, narrator)
    if arguments.line:  # its output may be piped: only it goes to stdout
        narrator = Narrator.on_stderr()
    layout = _fresh(arguments, narrator, "shell")
    with _world(layout, _plan(arguments), narrator, keep=False) as fresh:
        return _enter(layout, fresh, arguments, narrator)


_HINTS = """\
Google's host names lead to the emulated cloud here, and nothing leads out. Try
  pulumi -C infra/layers/storage up -s {env}          then infra/layers/network, infra/layers/data
  tpu publish {env}                then `pulumi up -s {env}` at the root
  ssh tpu-{env}-w0                             once the slice is up, in `shell --as ml-engineer`
  gcloud storage ls, curl, any Google client; `exit` leaves"""


def _enter(layout: Layout, state: State, arguments: argparse.Namespace, narrator: Narrator) -> int:
    state = replace(state, environment=state.environment | person.login(arguments.account, layout.home))
    if arguments.line:
        return life.run_inside(layout, state, ["bash", "-c", arguments.line], owns_interrupts=True)
    narrator.line(_HINTS.format(env=arguments.env))
    (layout.home / ".bashrc").write_text("PS1='(rehearsal) \\w $ '\nalias ll='ls -l'\n")
    shell = ["bash", "--noprofile", "--rcfile", str(layout.home / ".bashrc"), "-i"]
    return life.run_inside(layout, state, shell, owns_interrupts=True)


def _down(arguments: argparse.Namespace, narrator: Narrator) -> int:
    layout = _kept(arguments)
    if not layout.root.exists():
        narrator.line(f"nothing is up in {layout.root}")
        return 0
    life.require_root()
    with narrator.step(f"end the world in {layout.root}"):
        life.end(layout)
    return 0


def _status(arguments: argparse.Namespace, narrator: Narrator) -> int:
    layout = _kept(arguments)
    life.require_up(layout)
    status = Control(layout.control).status()
    if arguments.json:
        print(json.dumps(status))
    else:
        narrator.status(layout.root, status)
    return 0


def _dashboards(arguments: argparse.Namespace, narrator: Narrator) -> int:
    layout = _kept(arguments)
    life.require_up(layout)
    page = Control(layout.control).dashboards(arguments.hours * 3600)
    arguments.out.write_text(page, encoding="utf-8")
    narrator.line(f"{arguments.out}")
    return 0


def _picture(arguments: argparse.Namespace, narrator: Narrator) -> int:
    recording = arguments.source.suffix == ".cast"
    out = arguments.out or Path("docs/pictures", "recovery.svg" if recording else "loss.svg")
    if recording:
        cast.draw(arguments.source, out)
    else:
        write_picture(Record.load(arguments.source), out)
    narrator.line(f"{out}")
    return 0


def _list(arguments: argparse.Namespace, narrator: Narrator) -> int:
    if arguments.json:
        print(json.dumps({scenarios.name_of(path): scenarios.load(path).title for path in scenarios.own()}))
        return 0
    for path in scenarios.own():
        narrator.line(f"  {scenarios.name_of(path):<16} {scenarios.load(path).title}")
    narrator.line("next: tpu rehearsal run NAME")
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
