"""A `pulumi` that remembers how it was called and answers from files."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """#!{python} -IS
import json, os, pathlib, sys
home = pathlib.Path({home!r})
directory, arguments = sys.argv[2], sys.argv[3:]
with (home / "calls").open("a") as log:
    log.write(json.dumps([directory, arguments, os.environ.get("PULUMI_BACKEND_URL", "")]) + "\\n")
answers = json.loads((home / "answers").read_text())
if "--event-log" in arguments and (home / "events").exists():
    pathlib.Path(arguments[arguments.index("--event-log") + 1]).write_text((home / "events").read_text())
for begin, (status, out, err) in answers.items():
    if " ".join(arguments).startswith(begin):
        print(out)
        print(err, file=sys.stderr)
        sys.exit(status)
print("plan of", directory)
"""


class FakePulumi:
    """Answers of a pretended CLI, and the calls that it got."""

    def __init__(self, home: Path):
        self.home = home
        self.answers: dict[str, tuple[int, str, str]] = {}
        (home / "calls").touch()
        self._write()

    def answer(self, begin: str, out: Any = "", *, status: int = 0, err: str = "") -> None:
        """Answer commands that begin so; `out` is printed as JSON if it isn't text."""
        self.answers[begin] = (status, out if isinstance(out, str) else json.dumps(out), err)
        self._write()

    def log(self, *events: dict[str, Any]) -> None:
        """Set the events that commands with an event log write."""
        (self.home / "events").write_text("".join(f"{json.dumps(event)}\n" for event in events))

    def _write(self) -> None:
        (self.home / "answers").write_text(json.dumps(self.answers))

    @property
    def calls(self) -> list[tuple[str, list[str], str]]:
        """(folder, arguments, backend) of each call."""
        return [tuple(json.loads(line)) for line in (self.home / "calls").read_text().splitlines()]

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
    program.write_text(SCRIPT.format(python=sys.executable, home=str(home)))
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
