"""Bundles of layers' machines: published with the hosts' where a layer that is on declares one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.core.layer import Hooks, MachineBundle
from infra.publish import machines
from infra.publish.bundle import Bundle, assemble

DECLARED = MachineBundle(
    key="slurm:bundle", script=lambda: "exit\n", wheels=Path("lock"), packages=Path("packages")
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a layer that has machines and one that has none, both on in `lab`."""
    layers = [SimpleNamespace(hooks=Hooks()), SimpleNamespace(hooks=Hooks(bundle=DECLARED))]
    (tmp_path / "Pulumi.lab.yaml").write_text("config:\n  slurm:name: x\n")
    (tmp_path / "startup.sh").write_text("exit\n")
    monkeypatch.setattr(machines, "from_file", lambda *_: None)
    monkeypatch.setattr(machines, "layers_on", lambda _: layers)
    monkeypatch.setattr(machines, "build", lambda *_: assemble({"startup.sh": tmp_path / "startup.sh"}))
    return tmp_path


def test_the_id_of_what_was_sent_is_recorded(root: Path) -> None:
    sent: list[Bundle] = []
    lines: list[str] = []
    published = machines.publish("lab", sent.append, lines.append, root=root)
    assert published == {"slurm:bundle": sent[0].id}
    assert f"slurm:bundle: {sent[0].id}" in (root / "Pulumi.lab.yaml").read_text()
    assert lines[-1] == "Pulumi.lab.yaml: slurm:bundle is set"


def test_a_dry_run_changes_no_file(root: Path) -> None:
    before = (root / "Pulumi.lab.yaml").read_bytes()
    assert machines.publish("lab", lambda _: None, lambda _: None, recorded=False, root=root)
    assert (root / "Pulumi.lab.yaml").read_bytes() == before
