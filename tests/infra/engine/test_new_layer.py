"""A folder of two files makes a layer: checked, priced, previewed, documented, up and down. The real CLI."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.world.checkout import copy_program
from tests.infra.lab import SETTINGS, Lab

FOLDER = "infra/layers/notes"
PROJECT_FILE = "name: notes\ndescription: Notes\nruntime: python\nmain: ../../..\nstackConfigDir: ../../..\n"
NETWORK = "projects/wire-test/global/networks/minutes"
DECLARED = """\
import json, sys
from pathlib import Path
from types import SimpleNamespace
from infra.core.environment import layers_on, required_services
from infra.engine import registry
from infra.doctor.checks import Target, checks
from infra.engine.settings import from_file
settings = from_file("dev", Path(sys.argv[1]))
target = Target(settings, (), SimpleNamespace(project="p"))
print(json.dumps({
    "on": [layer.name for layer in layers_on(settings)],
    "services": required_services(settings),
    "doctor": [name for name, _ in checks(target)],
}))
"""


@pytest.fixture(name="lab")
def _lab(tmp_path: Path) -> Iterator[Lab]:
    tree = tmp_path / "tree"
    copy_program(tree)
    for command in (
        "init -q",
        "add -A",
        "-c user.name=a -c user.email=a@b -c commit.gpgsign=false commit -qm a",
    ):
        subprocess.run(["git", *command.split()], cwd=tree, check=True)
    (tree / FOLDER).mkdir()
    (tree / FOLDER / "layer.py").write_text((Path(__file__).parent / "new_layer.py").read_text())
    (tree / FOLDER / "Pulumi.yaml").write_text(PROJECT_FILE)
    lab = Lab(tmp_path, apis=("compute.googleapis.com",), tree=tree)
    yield lab
    lab.close()


def declared(lab: Lab) -> dict[str, list[str]]:
    parsed: dict[str, list[str]] = json.loads(lab.run(sys.executable, "-c", DECLARED, str(lab.root)))
    return parsed


@pytest.mark.prove
@pytest.mark.slow
def test_a_folder_of_two_files_is_a_layer(lab: Lab) -> None:
    # Off, as it is in every environment that doesn't set it.
    off = declared(lab)
    assert "notes" not in off["on"]
    assert "conflicts notes" not in off["doctor"]
    assert "pubsub.googleapis.com" not in off["services"]
    assert "notes" not in lab.infra("prices", "dev")
    assert "notes is off in dev" in lab.infra("up", "dev", "notes", "--yes", fine=False)

    lab.settings.write_text(f"{SETTINGS}  notes:nam: minutes\n  notes:mtu: 9000\n")
    output = lab.infra("prices", "dev", fine=False)
    assert 'notes:nam = "minutes"' in output
    assert "did you mean notes:name?" in output
    assert "notes:mtu = 9000: must be 1300 to 8896 bytes" in output
    assert "notes:name = nothing: required (name of the notes)" in output
    lab.settings.write_text(f"{SETTINGS}  network:mtu: 1400\n  notes:name: minutes\n")
    assert "no note is larger than network:mtu, 1400" in lab.infra("prices", "dev", fine=False)

    lab.settings.write_text(f"{SETTINGS}  notes:name: minutes\n")
    on = declared(lab)
    assert on["on"].index("notes") > on["on"].index("network")
    assert "pubsub.googleapis.com" in on["services"]
    assert {"stack notes", "conflicts notes"} <= set(on["doctor"])
    assert "notes" in lab.infra("up", "--help")
    assert "notes" in lab.run("make", "help")
    assert "| `notes:mtu` | whole number | `1460` | largest note, bytes |" in lab.run(
        sys.executable, "-c", "from tools import settings_docs; print(settings_docs.section('notes'))"
    )
    output = lab.tpu("plan", "dev")
    assert "minutes" in output.partition("== ")[0], "priced"
    assert "Notes: 25 cents an hour." in output
    assert "== notes: no stack known, planned from nothing ==" in output
    assert re.search(r"\+ +gcp:compute/network:Network +notes", output.partition("== notes")[2])
    assert re.search(r"notes +\d +0 +0 +0 +0\.25 +6\.00", output), "a row of the summary"

    lab.infra("up", "dev", "notes", "--yes", "--skip-preview")
    assert NETWORK in lab.living()
    outputs = json.loads(lab.pulumi("notes", "stack", "output", "--json", "-s", "dev"))
    assert outputs == {"notesId": NETWORK}
    lab.infra("down", "dev", "notes", "--yes", "--skip-preview")
    assert NETWORK not in lab.living()
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=lab.tree, capture_output=True, text=True, check=True
    )
    assert status.stdout == f"?? {FOLDER}/\n", "no other file was edited"
