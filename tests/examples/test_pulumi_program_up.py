"""The commands of examples/pulumi-program/README.md as printed: an emulated cloud, the real CLI."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.settings.sources import ROOT
from tests.infra.lab import BUCKET, BUNDLE, PROJECT, Lab
from tests.limits import HANG_S

README = (ROOT / "examples/pulumi-program/README.md").read_text("utf-8")
SLICES = "  tpu:slices:\n"


@pytest.fixture(name="lab")
def _lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    del lab.environment["PULUMI_BACKEND_URL"]
    yield lab
    lab.close()


def typed(lab: Lab, line: str, folder: Path) -> str:
    """Run a printed line; `pulumi up` would ask, and `--local` is the home of the password database."""
    line = line.replace("CLONE", str(ROOT)).replace("pulumi up", "pulumi up --yes --skip-preview")
    line = line.replace("--local", f"file://{lab.folder / 'state'}")
    done = subprocess.run(
        ["bash", "-ec", line],
        cwd=folder, env=lab.environment, text=True, check=False, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=HANG_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.prove
@pytest.mark.slow
def test_a_project_of_the_template_comes_up_in_two_steps_and_goes(lab: Lab) -> None:
    (block,) = re.findall(r"^```bash\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    typed(lab, block, lab.root)
    folder = lab.root / "my-platform"
    settings = folder / "Pulumi.dev.yaml"
    text = settings.read_text("utf-8").replace("my-project", PROJECT)
    settings.write_text(f"{text.partition(SLICES)[0]}  tpu:slices: []\n")
    first, second = re.findall(r"`((?:pulumi login|pulumi up)[^`]*)`", README)
    typed(lab, first, folder)
    assert f"projects/{PROJECT}/global/networks/tpu-training" in lab.living()
    assert not nodes(lab)

    lab.publish(BUCKET)
    salt = settings.read_text("utf-8").rpartition("\n  tpu:slices: []\n")[2]
    settings.write_text(f'{text}  tpu:bundle: "{BUNDLE}"\n{salt}')
    typed(lab, second, folder)
    assert nodes(lab) == {"embedded"}
    typed(lab, "pulumi preview --expect-no-changes", folder)
    typed(lab, "pulumi state unprotect --all --yes; pulumi destroy --yes --skip-preview", folder)
    assert not nodes(lab)


def nodes(lab: Lab) -> set[str]:
    return {name.rpartition("/nodes/")[2] for name in lab.living() if "/nodes/" in name}
