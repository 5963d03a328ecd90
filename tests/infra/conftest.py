"""A `pulumi` that remembers how it was called and answers from files."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

# A shell starts in a tenth of Python's time, and tests run a thousand of these commands.
SCRIPT = """#!/bin/sh
directory=$2
shift 2
call="$directory\037${{PULUMI_BACKEND_URL-}}"
for word; do
  call="$call\037$word"
  [ "$before" = --event-log ] && [ -e "{home}/events" ] && cat "{home}/events" > "$word"
  before=$word
done
printf '%s\036' "$call" >> "{home}/calls"
for answer in "{home}"/answers/*; do
  IFS= read -r begin < "$answer/begin" || continue
  case $* in
    "$begin"*) cat "$answer/out"; cat "$answer/err" >&2; exit "$(cat "$answer/status")";;
  esac
done
echo "plan of $directory"
"""


class FakePulumi:
    """Answers of a pretended CLI, and the calls that it got."""

    def __init__(self, home: Path):
        self.home = home
        self._begins: list[str] = []
        (home / "calls").touch()

    def answer(self, begin: str, out: Any = "", *, status: int = 0, err: str = "") -> None:
        """Answer commands that begin so; `out` is printed as JSON if it isn't text."""
        if begin not in self._begins:
            self._begins.append(begin)
        folder = self.home / "answers" / f"{self._begins.index(begin):02}"
        folder.mkdir(parents=True, exist_ok=True)
        text = out if isinstance(out, str) else json.dumps(out)
        for name, content in (("begin", begin), ("out", text), ("err", err), ("status", status)):
            (folder / name).write_text(f"{content}\n")

    def log(self, *events: dict[str, Any]) -> None:
        """Set the events that commands with an event log write."""
        (self.home / "events").write_text("".join(f"{json.dumps(event)}\n" for event in events))

    @property
    def calls(self) -> list[tuple[str, list[str], str]]:
        """(folder, arguments, backend) of each call."""
        calls = [call.split("\037") for call in (self.home / "calls").read_text().split("\036")[:-1]]
        return [(folder, arguments, backend) for folder, backend, *arguments in calls]

    def commands(self) -> list[str]:
        """The first words of each call."""
        return [
            " ".join(arguments[:2]) if arguments[0] == "stack" else arguments[0]
            for _, arguments, _ in self.calls
        ]


@pytest.fixture
def pulumi_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePulumi:
    home = tmp_path / "fake-pulumi"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "pulumi"
    program.write_text(SCRIPT.format(home=home))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PULUMI_BACKEND_URL", "file:///the-users-own")
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "")
    return FakePulumi(home)


def node_state(name: str, state: str | None, *, component: bool = True, **more: Any) -> list[dict[str, Any]]:
    """A slice as a state file has it; without a state Google knows no such node."""
    stack = "urn:pulumi:dev::tpu::"
    resources: list[dict[str, Any]] = []
    if component:
        resources.append({"urn": f"{stack}tpu:tpu:TpuSlice::{name}", "type": "tpu:tpu:TpuSlice"})
    if state is not None:
        outputs: Mapping[str, Any] = {"state": state} if state else {}
        urn = f"{stack}tpu:tpu:TpuSlice$gcp:tpu/v2Vm:V2Vm::{name}"
        node_id = f"projects/my-project/locations/us-east5-b/nodes/{name}"
        resources.append({"urn": urn, "type": "gcp:tpu/v2Vm:V2Vm", "id": node_id, "outputs": outputs, **more})
    return resources
