"""The commands of docs/guides/notebook.md, executed as printed: what starts, and where the browser is led."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fleet.hosts
from cli import run
from fleet import ssh
from rehearsal.scenario.guides import commands
from tests.cli.call import call
from tests.cli.test_run import NODE, Published, _published  # noqa: F401
from tests.fleet.command import fleet as fleet_command
from tests.fleet.world import Cloud, _world, enter, settings  # noqa: F401
from tools.blocks import ROOT

PAGE = ROOT / "docs/guides/notebook.md"
# What the guide's program imports; it prints what JupyterLab would start with.
LAB = """
import json, os, sys
def main():
    print(json.dumps([sys.argv[1:], os.getcwd(), os.environ["JUPYTER_TOKEN"]]))
"""


def test_the_notebook_guide_starts_a_server_and_leads_the_browser_to_it(
    tmp_path: Path, world: Cloud, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = settings(**{"storage:secrets": '["notebook-token"]'})
    enter(monkeypatch, world, declared)
    monkeypatch.setattr(run, "from_file", lambda _: declared)
    monkeypatch.setattr(run.variables, "problems", lambda *_: iter(()))
    monkeypatch.setattr(ssh.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(ssh, "os_login_name", lambda: "ada_example_com")
    lines = [
        line
        for block in commands(PAGE).values()
        for line in block.replace("/tmp/guide", str(tmp_path)).splitlines()
    ]
    assert "storage:secrets: [notebook-token]" in PAGE.read_text(encoding="utf-8")

    subprocess.run(
        ["bash", "-ec", "\n".join(line for line in lines if not line.startswith("tpu"))], check=True
    )
    started, forwarded, deleted = [shlex.split(line)[1:] for line in lines if line.startswith("tpu ")]
    assert call(run.run, [*started[1 : started.index("--")], "--yes", *started[started.index("--") :]]) == 0
    assert published.packed == [["main.py", "requirements.txt"]]
    (record,) = [json.loads(text) for text, _ in world.objects.values() if '"notebook"' in text]
    assert record["secrets"] == ["JUPYTER_TOKEN=notebook-token"]
    arguments, folder, token = program(tmp_path, record["run"])
    assert (folder, token) == (str(tmp_path / "bucket"), "from the secret")

    executed: list[list[str]] = []

    def replace(_: str, line: list[str]) -> None:
        executed.append(line)
        raise SystemExit(0)

    monkeypatch.setattr(fleet.hosts.os, "execvp", replace)
    with pytest.raises(SystemExit):
        fleet_command(forwarded)
    (port,) = [word.removeprefix("--port=") for word in arguments if word.startswith("--port=")]
    assert f"--ssh-flag=-L{port}:localhost:{port}" in executed[0]
    assert re.search(rf"@{NODE}$", next(word for word in executed[0] if "@" in word))
    assert f"http://localhost:{port} " in PAGE.read_text(encoding="utf-8")

    assert fleet_command([*deleted[1:], "--yes"]) == 0
    assert world.states[NODE] == ""


def program(folder: Path, command: str) -> Any:
    """Run the guide's program beside a JupyterLab of ours; return its arguments, folder and token."""
    package = folder / "packages" / "jupyterlab"
    package.mkdir(parents=True)
    (package / "labapp.py").write_text(LAB)
    (folder / "bucket").mkdir()
    environment = {
        **os.environ, "PYTHONPATH": str(package.parent), "CHECKPOINT_DIR": str(folder / "bucket"),
        "JUPYTER_TOKEN": "from the secret",
    }  # fmt: skip
    _, *words = shlex.split(command)
    done = subprocess.run(
        [sys.executable, *words], cwd=folder / "notebook", env=environment, capture_output=True, check=True
    )
    return json.loads(done.stdout)
