"""The two environments of docs/guides/environments.md, up in one emulated project, by its commands.

Its files, and the same commands, are those of examples/two-environments/README.md.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.settings.sources import ROOT
from rehearsal.scenario.guides import commands
from tests.infra.lab import BUNDLE, PROJECT, Lab

SECTIONS = commands(ROOT / "docs/guides/environments.md")
EXAMPLE = "examples/two-environments"
ENVIRONMENTS = ("us", "eu")


@pytest.fixture(name="lab")
def _lab(tmp_path: Path) -> Iterator[Lab]:
    """The guide's files, of the lab's project and snapshot, with a bundle that is published already."""
    lab = Lab(tmp_path)
    lab.settings.unlink()
    shutil.copytree(ROOT / EXAMPLE, lab.root / EXAMPLE)
    subprocess.run(["bash", "-ec", SECTIONS["1. Write the files"]], cwd=lab.root, check=True)
    for name in ENVIRONMENTS:
        path = lab.root / f"Pulumi.{name}.yaml"
        text = path.read_text().replace("my-project", PROJECT).replace("training-data", "corpus")
        path.write_text(f'{text}  tpu:bundle: "{BUNDLE}"\n')
    yield lab
    lab.close()


@pytest.mark.prove
@pytest.mark.slow
def test_both_are_up_beside_each_other_and_one_goes_alone(lab: Lab) -> None:
    for line in SECTIONS["2. Plan and bring up"].splitlines():
        program, command, name = line.split()
        assert (program, name in ENVIRONMENTS) == ("tpu", True)
        if command == "up":
            lab.tpu("up", name, "storage", "--yes")
            lab.publish(f"{PROJECT}-{name}")
        lab.tpu(command, name, *(["--yes"] if command == "up" else []))
    assert nodes(lab) == {"us-east5-a/nodes/train-us", "europe-west4-a/nodes/train-eu"}
    for name in ENVIRONMENTS:
        assert lab.tpu("plan", name).endswith("\nno changes\n")

    kept = {name for name in lab.cloud.world.directory if "europe-west4" in name or "-eu" in name}
    lab.tpu("down", "us", "network", "data", "tpu", "--yes")
    assert nodes(lab) == {"europe-west4-a/nodes/train-eu"}
    assert kept <= set(lab.cloud.world.directory)
    assert lab.tpu("plan", "eu").endswith("\nno changes\n")


def nodes(lab: Lab) -> set[str]:
    return {name.partition("/locations/")[2] for name in lab.living() if "/nodes/" in name}
