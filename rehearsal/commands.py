"""The commands of `tpu rehearsal`.

Exit status: 0 passed · 1 the scenario failed · 2 usage or scenario error · 3 the world can't be created or
entered · 130 interrupted.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class World:
    """Options of a world.

    Attributes:
        folder: of the world; None: one in the cache folder.
        plugins: folder with the official gcp provider plugin.
        environment: of a fresh world.
        clock: virtual seconds per second, of a fresh world.
    """

    folder: Path | None = None
    plugins: Path | None = None
    environment: str = "dev"
    clock: float = 20.0


def guarded(command: Callable[[Narrator], int]) -> int:
    """Run a command and print its errors; return the exit status."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    signal.signal(signal.SIGHUP, _as_interrupt)
    try:
        return command(Narrator())
    except RehearsalError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.fix:
            print(f"  fix: {error.fix}", file=sys.stderr)
        return USAGE if isinstance(error, ScenarioError) else NO_WORLD
    except OSError as error:  # a full disk, a folder of another user
        print(f"error: {error}", file=sys.stderr)
        return NO_WORLD
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _as_interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _kept(folder: Path | None) -> Layout:
    """Return the layout of the world that `up` creates in `folder`, or in the cache folder."""
    return Layout((folder or cache_dir() / "world").resolve())


@contextmanager
def _world(layout: Layout, plan: making.Plan, narrator: Narrator, *, keep: bool) -> Iterator[State]:
    """Create a world; end it with the block unless it is to be kept and came up."""
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
            # A second Ctrl+C must not leave half of it behind; started programs inherit this.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            with narrator.step("clean up"):
                life.end(layout)


def new_layout(folder: Path | None, narrator: Narrator, name: str) -> Layout:
    """Return the layout of a new world: in `folder`, or in a temporary one whose name begins with `name`.

    Without a folder, the remains of runs that were killed are removed first.
    """
    if folder:
        return Layout(folder.resolve())
    life.require_machine()  # before a folder exists, which would stay
    parent = cache_dir() / "worlds"
    parent.mkdir(parents=True, exist_ok=True)
    for dead in life.left_behind(parent):
        with suppress(RehearsalError), narrator.step(f"remove {dead.root}, whose command was killed"):
            life.remove(dead)
    return Layout(Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent)))


def run(narrator: Narrator, name: str, world: World, seed: int | None, folder: Path, keep: bool) -> int:
    """Run a scenario and write a report.

    Args:
        narrator: for progress.
        name: a scenario of the project, or a file.
        world: options of the world; the scenario sets environment and clock.
        seed: of random moments; None: the scenario's.
        folder: of the report.
        keep: leave the world up afterwards.

    Returns:
        The exit status.
    """
    scenario = scenarios.load(scenarios.find(name), seed)
    layout = _kept(world.folder) if keep else new_layout(world.folder, narrator, "run")
    plan = making.Plan(
        environment=scenario.environment,
        cloud=scenario.cloud,
        seed=scenario.seed or 0,
        plugins=world.plugins,
        text=scenario.text,
        settings=scenario.settings,
        control_planes=scenario.control_planes,
        runtimes=scenario.runtimes,
        locks=scenario.locks,
        prepare=scenario.prepare,
    )
    report = folder.resolve()
    report.mkdir(parents=True, exist_ok=True)
    narrator.line(f"{scenario.title}  (seed {scenario.seed})")
    with _world(layout, plan, narrator, keep=keep) as state:
        command = [sys.executable, "-m", "rehearsal.scenario", str(scenario.path.resolve())]
        command += ["--seed", str(scenario.seed), "--report", str(report)]
        try:
            return life.run_inside(layout, state, command, owns_interrupts=False)
        finally:
            if keep:
                narrator.line(f"the world is still up: tpu rehearsal shell --dir {layout.root}")


def up(narrator: Narrator, world: World) -> int:
    """Create a world and leave it up."""
    layout = _kept(world.folder)
    with _world(layout, _plan(world), narrator, keep=True):
        flag = f" --dir {layout.root}" if world.folder else ""
        narrator.line(f"up in {layout.root}\nnext: tpu rehearsal shell{flag}   (at the end: down)")
    return 0


def _plan(world: World) -> making.Plan:
    return making.Plan(
        environment=world.environment,
        cloud={"clock_rate": world.clock},
        plugins=world.plugins,
        control_planes=True,
    )


def shell(narrator: Narrator, world: World, account: str, line: str | None) -> int:
    """Start a shell in the world that is up, else in a fresh one.

    Args:
        narrator: for progress.
        world: options of the world.
        account: the user in the world, of `person.LOGINS`.
        line: run this line instead of an interactive shell.

    Returns:
        The exit status of the shell.
    """
    stored = _kept(world.folder)
    state = State.load(stored.state)
    if state and state.alive:
        return _enter(stored, state, narrator, world.environment, account, line)
    if line:  # only its output goes to stdout, which may be a pipe
        narrator = Narrator.on_stderr()
    layout = new_layout(world.folder, narrator, "shell")
    with _world(layout, _plan(world), narrator, keep=False) as fresh:
        return _enter(layout, fresh, narrator, world.environment, account, line)


_HINTS = """\
Google's host names lead to the emulated cloud here, and nothing leads out. Try
  pulumi -C infra/layers/storage up -s {env}          then infra/layers/network, infra/layers/data
  tpu publish {env}                then `pulumi up -s {env}` at the root
  ssh tpu-{env}-w0                             once the slice is up, in `shell --as ml-engineer`
  gcloud storage ls, curl, any Google client; `exit` leaves"""


def _enter(
    layout: Layout, state: State, narrator: Narrator, environment: str, account: str, line: str | None
) -> int:
    state = replace(state, environment=state.environment | person.login(account, layout.home))
    if line:
        return life.run_inside(layout, state, ["bash", "-c", line], owns_interrupts=True)
    narrator.line(_HINTS.format(env=environment))
    (layout.home / ".bashrc").write_text("PS1='(rehearsal) \\w $ '\nalias ll='ls -l'\n")
    interactive = ["bash", "--noprofile", "--rcfile", str(layout.home / ".bashrc"), "-i"]
    return life.run_inside(layout, state, interactive, owns_interrupts=True)


def down(narrator: Narrator, folder: Path | None) -> int:
    """End the world that is up and remove its folder."""
    layout = _kept(folder)
    if not layout.root.exists():
        narrator.line(f"nothing is up in {layout.root}")
        return 0
    life.require_root()
    with narrator.step(f"end the world in {layout.root}"):
        life.end(layout)
    return 0


def status(narrator: Narrator, folder: Path | None, *, as_json: bool) -> int:
    """Print nodes, hosts, requests and faults of the world that is up."""
    layout = _kept(folder)
    life.require_up(layout)
    document = Control(layout.control).status()
    if as_json:
        print(json.dumps(document))
    else:
        narrator.status(layout.root, document)
    return 0


def picture(narrator: Narrator, source: Path, out: Path | None) -> int:
    """Draw the losses of a report, or a recording, as SVG."""
    recording = source.suffix == ".cast"
    out = out or Path("docs/pictures", "recovery.svg" if recording else "loss.svg")
    if recording:
        cast.draw(source, out)
    else:
        write_picture(Record.load(source), out)
    narrator.line(f"{out}")
    return 0


def list_scenarios(narrator: Narrator, *, as_json: bool) -> int:
    """Print the scenarios of the project."""
    if as_json:
        print(json.dumps({scenarios.name_of(path): scenarios.load(path).title for path in scenarios.own()}))
        return 0
    for path in scenarios.own():
        narrator.line(f"  {scenarios.name_of(path):<16} {scenarios.load(path).title}")
    narrator.line("next: tpu rehearsal run NAME")
    return 0
