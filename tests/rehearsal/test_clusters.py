"""GKE clusters of a world, with real control planes: names, certificates, identities, nodes, the end."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import requests
from rich.console import Console

from rehearsal.cloud.control import Control, ControlError
from rehearsal.kubernetes.errors import KubernetesError
from rehearsal.kubernetes.node.reviews import Reviews
from rehearsal.kubernetes.plane.programs import KUBERNETES, QUEUE, folder
from rehearsal.world import making
from rehearsal.world.console import Narrator
from tests.limits import HANG_S, until

COMMAND = [sys.executable, "-m", "cli", "rehearsal"]


@pytest.fixture(name="root")
def _root() -> Iterator[Path]:
    try:
        for tool in (KUBERNETES, QUEUE):
            folder(tool)
    except KubernetesError as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory(prefix="world-") as name:
        yield Path(name) / "w"
        subprocess.run([*COMMAND, "down", "--dir", f"{name}/w"], capture_output=True, check=False)


def of_world(root: Path) -> list[str]:
    """Command lines of processes that have to do with this world."""
    result = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(root) in words:
            result.append(words)
    return result


def links() -> str:
    return subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout


def test_a_machine_without_the_programs_prints_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def folder(tool: str) -> Path:
        raise KubernetesError(f"{tool} isn't built yet", "tools/setup.sh kubernetes")

    monkeypatch.setattr(making.programs, "folder", folder)
    printed = io.StringIO()
    assert making.control_plane_programs(Narrator(Console(file=printed, width=200))) is None
    assert "clusters have no control planes here: queue isn't built yet" in printed.getvalue()
    assert "tools/setup.sh kubernetes" in printed.getvalue()


@pytest.mark.prove
@pytest.mark.root
@pytest.mark.slow
def test_a_cluster_of_a_world_is_real_from_its_first_node_to_its_end(root: Path) -> None:
    before = links()
    up = subprocess.run([*COMMAND, "up", "--dir", str(root)], capture_output=True, text=True, check=False)
    assert up.returncode == 0, up.stdout + up.stderr
    line = [*COMMAND, "shell", "--dir", str(root), "-c", "python -m tests.rehearsal.in_cluster"]
    inside = subprocess.run(line, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert inside.returncode == 0, inside.stderr + (root / "kubernetes.log").read_text()[-3000:]
    facts = json.loads(inside.stdout.splitlines()[-1])
    assert len(facts["first"]) == 1
    assert facts["whoami"] == ["owner@example.com"]
    assert "Permission 'container.clusters.connect' denied" in facts["stranger"]
    assert 'requires one of ["container.clusterRoleBindings.create"] permission(s)' in facts["developer"]
    assert facts["bound"] == ["yes"], "what RBAC grants holds beside IAM"
    assert facts["logged"] == [], "the control plane's questions are no requests of the people"
    assert sum("gke-tpu-v6e-" in node for node in facts["slice"]) == 4
    assert facts["written"].endswith(".svc.id.goog"), "a pod of a granted account writes by gcsfuse"
    assert "can't be mounted" in facts["refused"], "another namespace's account may not"
    assert facts["observed"] == [1], "a zone without chips"
    assert {"FailedScaleUp", "TriggeredScaleUp"} <= set(facts["reasons"])
    assert facts["scaled"] == 4, "all nodes of a slice at once"
    assert facts["lost"] == "4 nodes"
    assert "A second cluster beside one that has a control plane is not emulated" in facts["second"]

    status = subprocess.run(
        [*COMMAND, "status", "--dir", str(root)], capture_output=True, text=True, check=True
    )
    assert "control plane of tpu: ready" in status.stdout
    assert any("kube-apiserver" in words for words in of_world(root))
    down = subprocess.run([*COMMAND, "down", "--dir", str(root)], capture_output=True, text=True, check=False)
    assert down.returncode == 0, down.stderr
    until(lambda: not of_world(root), lambda: of_world(root))
    assert links() == before


class FakeControl:
    """A cloud that knows one token, and is away for accesses."""

    def clusters(self, what: str, **body: Any) -> dict[str, Any]:
        if what == "access":
            raise ControlError("no emulated cloud answers")
        return {"account": "ada@example.com" if body["token"] == "known" else ""}


def test_reviews_pass_on_whose_a_token_is_and_fail_while_the_cloud_is_away() -> None:
    reviews = Reviews(cast(Control, FakeControl()), "projects/p/locations/l/clusters/c")
    reviews.start()
    try:
        post = partial(requests.post, timeout=HANG_S)
        url = f"{reviews.url}/tokens"
        known, unknown = (post(url, json={"spec": {"token": token}}) for token in ("known", "other"))
        status = {"authenticated": True, "user": {"username": "ada@example.com"}}
        assert known.json() == {"spec": {"token": "known"}, "status": status}
        assert unknown.json()["status"] == {"authenticated": False}
        away = post(f"{reviews.url}/access", json={"spec": {"user": "ada@example.com"}})
        assert (away.status_code, away.json()["status"]) == (500, {"error": "no emulated cloud answers"})
    finally:
        reviews.stop()
