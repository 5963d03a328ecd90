"""`tpu run --replace`: another program on a slice that is up."""

import itertools
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli import run
from fleet.adhoc import REPLACING
from fleet.model import WorkerStatus
from infra.errors import CommandError
from infra.google.failures import Failure, Kind
from tests.cli.call import call
from tests.cli.test_run import DONE, NODE, Published, _published, _script  # noqa: F401
from tests.fleet.command import fleet
from tests.fleet.world import Cloud, _world  # noqa: F401
from tests.limits import HANG_S
from tests.virtual_time import replace_time


@pytest.fixture(name="detached")
def _detached(script: Path, published: Published, world: Cloud) -> list[str]:
    """Command line that has started the program `own` on a v6e-16."""
    line = ["dev", str(script), "--slice", "v6e-16", "--name", "own", "--yes", "--detach"]
    assert call(run.run, line) == 0
    return line


def _line(line: str, bundle: int) -> tuple[str]:
    return (line.replace("BUNDLE", f"{bundle:064x}"),)


@pytest.mark.parametrize("line", ["_INSTALL", "_INSTALL_CODE"])
@pytest.mark.parametrize("late", [0, 3, 60])
def test_a_host_installs_nothing_before_its_metadata_name_the_bundle(
    line: str, late: int, tmp_path: Path
) -> None:
    (command,) = _line(getattr(run, line), 2)
    stubs = f"""
      curl() {{
        case ${{*: -1}} in
          */tpu-bundle) echo >>tries; (($(wc -l <tries) > {late})) && echo {2:064x} || echo {1:064x} ;;
          */startup-script) echo loader ;;
        esac
      }}
      sudo() {{ echo "$@"; }}
      sleep() {{ :; }}
    """
    done = subprocess.run(
        ["bash", "-c", stubs + command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    if late > 30:
        assert (done.returncode, done.stdout) == (1, "")
        assert f"no update to bundle {2:064x} after 30 s: nothing is restarted" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        words = {
            "_INSTALL": "systemctl restart google-startup-scripts\n",
            "_INSTALL_CODE": "bash -c loader loader code\n",
        }
        assert done.stdout.startswith(words[line])
        assert len((tmp_path / "tries").read_text()) == late + 1


def test_a_second_program_of_a_name_is_told_whose_it_is_and_takes_over_only_by_replace(
    capsys: pytest.CaptureFixture[str], detached: list[str], published: Published, world: Cloud,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Breaker: two people's train.py of one name."""
    world.login = {"who": "bob@example.com", "from": "bob@desk"}
    before = dict(world.objects)
    message = r"its owner is ann@example.com \(ann@laptop\), it runs `python train.py`"
    with pytest.raises(CommandError.__base__, match=message):
        call(run.run, [*detached, "--", "--lr", "1"])
    assert len(published.targets) == 1, "before another bundle is made"
    with pytest.raises(CommandError.__base__, match="bundle 00000000; this one isn't its owner's"):
        call(run.run, detached)
    assert world.objects == before
    assert published.uploaded == [f"{1:064x}"], "a changed script is refused before its upload"
    assert capsys.readouterr().out.count("$22.45 an hour") == 2, "and before its price: one was run, detached"
    with pytest.raises(CommandError.__base__, match="this one isn't its owner's"):
        call(run.run, [word for word in detached if word != "--yes"])
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(run.hosts, "execute", lambda _, __, words: commands.append(tuple(words)) or 0)
    monkeypatch.setattr(run.hosts, "restart", lambda *_: commands.append(("restart",)) or 0)
    capsys.readouterr()
    assert call(run.run, [*detached, "--replace"]) == 0
    output = capsys.readouterr().out
    assert "present   own is a fleet already: its owner is ann@example.com" in output
    assert re.search(r"own: restarted on 4 workers after \d+\.\d s\n", output)
    assert commands == [_line(run._INSTALL_CODE, 4)], "the command is the same"
    assert world.updated == [NODE]
    assert [verb for verb, _ in world.requests] == ["create"]


def test_a_slice_that_another_folders_file_has_keeps_its_name(
    script: Path, published: Published, world: Cloud
) -> None:
    world.stack = replace(world.stack, slices=frozenset({"tune"}))
    with pytest.raises(
        CommandError, match=r"tune: a slice of this name is up, and /\S+/Pulumi.dev.yaml lacks it"
    ):
        call(run.run, ["dev", str(script), "--name", "tune", "--slice", "v6e-16"])
    assert (published.targets, world.requests) == ([], [])


@pytest.mark.parametrize("refused", [[], [Kind.TRANSIENT]])
def test_hosts_install_once_google_lists_the_update_of_their_metadata(
    refused: list[Kind], detached: list[str], world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, shown = world.labels[NODE]["spec"], []
    world.update_looks, world.refused = 5, [Failure(kind, "not now") for kind in refused]
    monkeypatch.setattr(run.hosts, "execute", lambda *_: shown.append(world.labels[NODE]["spec"]) or 0)
    sleep = time.sleep

    def pause(seconds: float) -> None:
        sleep(0.005)
        world.at_s += 10 * seconds

    replace_time(monkeypatch, "sleep", pause)
    assert call(run.run, [*detached, "--replace"]) == 0
    assert len(shown) == 1
    assert shown[0] != before, "an installation by the earlier metadata restarts the earlier code"
    assert world.updated == [NODE] * (1 + len(refused)), "a refused update is sent again"


def test_hosts_are_left_alone_if_their_metadata_cant_be_updated(
    detached: list[str], world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []
    monkeypatch.setattr(run.hosts, "execute", lambda *_: commands.append("install") or 0)
    monkeypatch.setattr(run.hosts, "restart", lambda *_: commands.append("restart") or 0)
    world.refused = [Failure(Kind.PERMISSION, "tpu.nodes.update")]
    with pytest.raises(CommandError, match=r"own: its hosts get no new metadata: .*tpu.nodes.update"):
        call(run.run, [*detached, "--replace"])
    assert (world.updated, commands) == ([NODE], [])
    assert fleet(["create", "dev", "--slice", "own", "--yes"]) == 0
    assert call(run.run, [*detached, "--replace"]) == 0
    assert commands == ["install", "restart"]


@pytest.mark.parametrize("more", [["--", "--lr", "1"], ["--env", "A=1"], []])
def test_hosts_run_their_startup_script_again_for_another_command_or_setting(
    more: list[str], detached: list[str], world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(run.hosts, "execute", lambda _, __, words: commands.append(tuple(words)) or 0)
    monkeypatch.setattr(run.hosts, "restart", lambda *_: commands.append(("restart",)) or 0)
    if not more:
        world.labels[NODE] = {**world.labels[NODE], "spec": "of-a-setting"}
    assert call(run.run, [*detached, "--replace", *more]) == 0
    assert commands == [_line(run._INSTALL, 2), ("restart",)]


@pytest.mark.parametrize("end", [KeyboardInterrupt, 1])
def test_an_interrupted_replacement_is_completed_by_the_same_command(
    end: type[BaseException] | int, script: Path, published: Published, world: Cloud,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    line = ["dev", str(script), "--slice", "v6e-16", "--name", "own", "--yes", "--detach", "--replace"]
    assert call(run.run, line) == 0
    commands: list[tuple[str, ...]] = []

    def broken(_: Any, remote: Any, words: Sequence[str]) -> int:
        assert world.updated == [NODE], "a reboot now gets the new code"
        assert not remote.probe, "a single connection to each host"
        commands.append(tuple(words))
        if isinstance(end, int):
            return end
        raise end

    monkeypatch.setattr(run.hosts, "execute", broken)
    with pytest.raises((KeyboardInterrupt, CommandError)):
        call(run.run, line)
    assert commands == [_line(run._INSTALL_CODE, 2)]
    monkeypatch.setattr(
        run, "publish", lambda *_, **__: SimpleNamespace(bundle=SimpleNamespace(id=f"{2:064x}"))
    )
    monkeypatch.setattr(run.hosts, "execute", lambda _, __, words: commands.append(tuple(words)) or 0)
    monkeypatch.setattr(run.hosts, "restart", lambda *_: commands.append(("restart",)) or 0)
    assert call(run.run, line) == 0
    assert commands[1:] == [_line(run._INSTALL, 2), ("restart",)], (
        "by all stages: some hosts may have the new code"
    )
    assert call(run.run, line) == 0
    assert len(commands) == 3, "nothing is left to do"


@pytest.mark.parametrize("monitored", [False, True])
def test_a_node_that_was_being_created_for_an_earlier_program_gets_the_new_one_once_it_is_up(
    monitored: bool, script: Path, published: Published, world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["dev", str(script), "--slice", "v6e-16", "--name", "own", "--yes", "--replace"]
    assert call(run.run, [*line, "--detach"]) == 0
    world.states[NODE] = "CREATING"
    commands: list[str] = []
    monkeypatch.setattr(run.hosts, "execute", lambda *_: commands.append("install") or 0)
    monkeypatch.setattr(run.hosts, "restart", lambda *_: commands.append("restart") or 0)
    looks = itertools.count()

    def look(job: run.Job, _: float) -> None:
        time.sleep(0.02)
        if (number := next(looks)) == 2:
            if monitored:  # by a monitor's update
                world.labels[NODE] = job.run.fleet.body(job.run.nodes[0][0])["labels"]
            world.states[NODE] = "READY"
        if commands:
            world.statuses[NODE] = DONE
        assert number < 100

    monkeypatch.setattr(run.Job, "_print_output", look)
    assert call(run.run, line) == 0
    assert commands == ["install"]
    assert world.updated == ([] if monitored else [NODE])


def test_a_replacement_waits_for_a_zone_that_doesnt_answer_at_first(
    detached: list[str], world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []
    monkeypatch.setattr(run.hosts, "execute", lambda *_: commands.append("install") or 0)
    world.silent, pauses, sleep = {"us-east5-a"}, itertools.count(), time.sleep

    def settled() -> bool:
        return any(f"{2:064x}" in text and REPLACING not in text for text, _ in world.objects.values())

    def pause(_: float) -> None:
        sleep(0.01)
        assert commands or not settled(), "nobody knows what the hosts run"
        if next(pauses) == 3:
            world.silent.clear()

    replace_time(monkeypatch, "sleep", pause)
    assert call(run.run, [*detached, "--replace"]) == 0
    assert next(pauses) > 3
    assert commands == ["install"]
    assert settled()


@pytest.mark.parametrize("state", ["READY", "CREATING"])
@pytest.mark.parametrize("more", [[], ["--detach"]])
def test_a_program_that_replaces_another_during_the_boot_is_installed_after_the_boot(
    state: str, more: list[str], script: Path, published: Published, world: Cloud,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    line = ["dev", str(script), "--slice", "v6e-1", "--name", "own", "--yes"]
    assert call(run.run, [*line, "--detach"]) == 0
    world.states[NODE], world.statuses[NODE] = state, WorkerStatus(0.0, "booting", "mount-checkpoints")
    commands: list[str] = []

    def send(command: str) -> int:
        assert world.statuses[NODE].boot == "ready", f"{command} during the boot"
        commands.append(command)
        world.statuses[NODE] = DONE
        return 0

    monkeypatch.setattr(run.hosts, "execute", lambda *_: send("install"))
    monkeypatch.setattr(run.hosts, "restart", lambda *_: send("restart"))
    pauses, sleep = itertools.count(), time.sleep

    def pause(_: float) -> None:
        sleep(0.01)
        if (number := next(pauses)) == 2:
            world.states[NODE] = "READY"
        if number == 8:
            assert not commands
            world.statuses[NODE] = WorkerStatus(0.0, "ready", "launch")
        assert number < 200

    replace_time(monkeypatch, "sleep", pause)
    assert call(run.run, [*line, "--replace", *more]) == 0
    assert commands == ["install"]
    assert world.updated == [NODE]
    assert [verb for verb, _ in world.requests] == ["create"]


def test_a_node_that_is_lost_during_its_boot_boots_the_new_program(
    script: Path, published: Published, world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["dev", str(script), "--slice", "v6e-1", "--name", "own", "--yes"]
    assert call(run.run, [*line, "--detach"]) == 0
    world.statuses[NODE] = WorkerStatus(0.0, "booting", "python")
    commands: list[str] = []
    monkeypatch.setattr(run.hosts, "execute", lambda *_: commands.append("install") or 0)
    monkeypatch.setattr(run.hosts, "restart", lambda *_: commands.append("restart") or 0)
    pauses, sleep = itertools.count(), time.sleep

    def pause(_: float) -> None:
        sleep(0.01)
        if (number := next(pauses)) == 4:
            world.states[NODE] = "PREEMPTED"
        if number > 4 and world.states[NODE] == "READY":
            world.statuses[NODE] = DONE
        assert number < 200

    replace_time(monkeypatch, "sleep", pause)
    assert call(run.run, [*line, "--replace"]) == 0
    assert commands == []
    assert [verb for verb, _ in world.requests] == ["create", "delete", "create"]
