"""`tpu` of the wheel: works in any folder with an environment's file, and builds what a checkout builds."""

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from infra.engine.settings import from_file
from infra.layers.pipeline.program import source
from infra.publish.wheels import build_workload
from infra.settings.sources import PROGRAM
from rehearsal.providers.gcp.install import install
from tests.limits import HANG_S
from tests.package.conftest import Run

PACKAGES = (
    "cli", "fleet", "google_facts", "infra", "pipeline", "settings_schema", "slurm", "views", "workload",
)  # fmt: skip


def test_it_holds_every_file_of_its_packages_and_none_of_the_others(wheel: Path) -> None:
    git = ["git", "-c", f"safe.directory={PROGRAM}", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run([*git, *PACKAGES], cwd=PROGRAM, capture_output=True, text=True, check=True).stdout
    tracked = {name for name in listed.splitlines() if (PROGRAM / name).is_file()}
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("infra/checkout/")}
    assert {name for name in names if ".dist-info/" not in name} == tracked


def test_it_holds_what_the_program_reads_beside_its_packages(wheel: Path) -> None:
    build_step = "tools/build-step.sh"  # of a build, which runs a clone
    literal = re.compile(r'"((?:tools|docs)/[\w./-]+)"')
    text = "".join(path.read_text("utf-8") for path in sorted((PROGRAM / "infra").rglob("*.py")))
    read = {name for name in literal.findall(text) if (PROGRAM / name).exists()} - {build_step}
    held = zipfile.ZipFile(wheel).namelist()
    assert len(read) >= 5
    assert {name for name in read if not any(f"infra/checkout/{name}" in entry for entry in held)} == set()


def test_its_dependencies_are_the_locks(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    required = message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
    needed = {line for line in required if "extra ==" not in line}
    lock = (PROGRAM / "requirements.txt").read_text("utf-8")
    assert needed <= set(re.findall(r"(?m)^[\w.-]+==[^\s;]+", lock))
    assert {"pulumi", "pulumi-gcp", "click", "numpy"} <= {line.partition("==")[0] for line in needed}


def test_help_and_prices_need_no_checkout(tpu: Run) -> None:
    assert "show the changes of each layer" in tpu("--help").stdout
    priced = tpu("infra", "prices", "dev", "--json")
    line = [sys.executable, "-m", "cli", "infra", "prices", "dev", "--json"]
    own = subprocess.run(line, cwd=PROGRAM, capture_output=True, text=True, check=True, timeout=HANG_S)
    assert priced.stdout == own.stdout


def test_a_folder_below_the_settings_will_do(tpu: Run, project: Path) -> None:
    (project / "code" / "deep").mkdir(parents=True)
    assert tpu("infra", "prices", "dev", cwd=project / "code" / "deep").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message", "status"),
    [
        (("plan", "prod"), "error: Pulumi.prod.yaml does not exist (environments: dev)", 2),
        (("rehearsal", "run"), "error: the wheel has no package `rehearsal`\n    fix: cd into a clone", 1),
        (("builds", "render", "dev"), "error: a build runs a clone of the repository, not a wheel", 1),
    ],
)
def test_a_miss_is_one_message(tpu: Run, arguments: tuple[str, ...], message: str, status: int) -> None:
    done = tpu(*arguments)
    assert (done.returncode, message in done.stderr, "Traceback" in done.stderr) == (status, True, False)


def test_without_settings_the_folder_is_named(tpu: Run, tmp_path: Path) -> None:
    done = tpu("infra", "prices", "dev", cwd=tmp_path)
    assert done.returncode == 2
    assert f"fix: cd into its folder, or write it in {tmp_path}" in done.stderr


def test_a_plan_runs_the_wheels_program(tpu: Run, project: Path, tmp_path: Path) -> None:
    install(tmp_path / "home")
    (tmp_path / "state").mkdir()
    done = tpu(
        "plan", "dev", "storage",
        PULUMI_HOME=str(tmp_path / "home"), PULUMI_BACKEND_URL=f"file://{tmp_path / 'state'}",
        PULUMI_CONFIG_PASSPHRASE="test", PATH=f"{PROGRAM / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "+  gcp:storage/bucket:Bucket  my-project-checkpoints\n" in done.stdout
    assert sorted(path.name for path in project.iterdir()) == [".tpu", "Pulumi.dev.yaml"]


def test_it_builds_the_bytes_that_a_checkout_builds(installed: Path, project: Path, tmp_path: Path) -> None:
    """The workload's wheel, which hosts install, and the source of the pipeline's function."""
    code = """\
import sys
from pathlib import Path
from infra.engine.settings import from_file
from infra.layers.pipeline.program import source
from infra.publish.wheels import build_workload
print(build_workload(Path(sys.argv[1])))
print(source(from_file("dev")))
"""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    line = [sys.executable, "-c", code, str(tmp_path / "theirs")]
    done = subprocess.run(
        line, cwd=project, env=environment, capture_output=True, text=True, check=True, timeout=HANG_S
    )
    built = [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in done.stdout.split()]
    own = (build_workload(tmp_path / "own"), source(from_file("dev", project), project))
    assert built == [hashlib.sha256(path.read_bytes()).hexdigest() for path in own]
