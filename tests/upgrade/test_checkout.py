"""A checkout of an earlier version, with stacks that are up, upgraded as docs/guides/upgrading.md has it.

Real are git, both versions' programs and the Pulumi CLI; Google Cloud is emulated. Both versions run on this
one's packages.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.settings.sources import ROOT
from tests.infra.lab import BUCKET, BUNDLE, OWNER, PROJECT, Lab

pytestmark = [pytest.mark.prove, pytest.mark.slow]
EARLIER = "0e9d5cda9bc94d9207201ec0436e8b5aa7bd88de"
"""A version of 2026-11-24, before any release; at a release, the last one's tag."""
LAYERS = ("storage", "network", "data", "tpu")
SETTINGS = f"""\
config:
  pulumi:disable-default-providers: ["*"]
  gcp:project: {PROJECT}
  storage:bucketName: {BUCKET}
  storage:location: us-east5
  storage:serviceAccountUsers: ["user:{OWNER}"]
  data:snapshot: corpus
  tpu:bundle: "{BUNDLE}"
  tpu:slices:
    - {{name: one, acceleratorType: v6e-1, zones: [us-east5-b], spot: true}}
"""
PLAIN_NAMES = "  storage:serviceAccountId: tpu-training\n  network:name: tpu-training\n"
"""Settings that the changelog names: default names carry the environment's since."""
SCRIPT = "from infra.tpu.startup import script_sha256; print(script_sha256())"


@pytest.fixture(name="lab")
def _lab(tmp_path: Path) -> Iterator[Lab]:
    """A clone at the earlier version, on a branch of its user's."""
    clone = tmp_path / "clone"
    if subprocess.run(["git", "cat-file", "-e", f"{EARLIER}^{{commit}}"], cwd=ROOT, check=False).returncode:
        pytest.skip(f"this clone's history doesn't reach {EARLIER}")
    subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(clone)], check=True)
    git(clone, "checkout", "-q", "-b", "ours", EARLIER)
    lab = Lab(tmp_path, tree=clone)
    yield lab
    lab.close()


def git(clone: Path, *arguments: str) -> None:
    person = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *person, *arguments], cwd=clone, check=True, stdout=subprocess.DEVNULL)


def tpu(lab: Lab, *arguments: str) -> str:
    """Run the checkout's own command in the checkout."""
    return lab.run(sys.executable, "-m", "cli", *arguments)


def planned(lab: Lab, fine: bool = True) -> dict[str, set[str]]:
    """Return the names of the resources that a plan changes, by operation; it must succeed, or fail."""
    changes: dict[str, set[str]] = {}
    output = lab.run(sys.executable, "-m", "cli", "plan", "eu", "--json", fine=fine)
    for layer in json.loads(next(line for line in output.splitlines() if line[:1] == "{"))["layers"]:
        for change in layer["changes"]:
            changes.setdefault(change["operation"], set()).add(change["name"])
    return changes


def up(lab: Lab) -> None:
    tpu(lab, "infra", "up", "eu", *LAYERS, "--yes", "--skip-preview")


def test_settings_and_state_are_kept_and_nothing_is_replaced_or_deleted(lab: Lab) -> None:
    settings = lab.tree / "Pulumi.eu.yaml"
    settings.write_text(SETTINGS)
    tpu(lab, "infra", "up", "eu", "storage", "--yes", "--skip-preview")
    lab.publish(script=lab.run(sys.executable, "-c", SCRIPT).strip())
    up(lab)
    before = lab.living()
    (node,) = [name for name in before if "/nodes/" in name]
    made = lab.cloud.world.directory[node]["createTime"]

    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    git(lab.tree, "add", "Pulumi.eu.yaml")
    git(lab.tree, "commit", "-qm", "Our settings")
    git(lab.tree, "merge", "-q", head.stdout.strip())
    assert settings.read_text().startswith(SETTINGS)

    # Without the changelog's settings names would change: deletions in the plan, refused where protected.
    assert "tpu-training" in planned(lab, fine=False)["delete"]
    settings.write_text(SETTINGS.replace("config:\n", f"config:\n{PLAIN_NAMES}"))
    changes = planned(lab)
    assert set(changes) <= {"create", "update"}
    lab.publish()
    up(lab)
    assert before <= lab.living()
    assert lab.cloud.world.directory[node]["createTime"] == made
    assert planned(lab) == {}
