"""Every command of the README exists and is run by something; generated blocks are current."""

import importlib
import os
import re
import subprocess
import sys
from datetime import date
from importlib import metadata
from pathlib import Path

import pytest

from rehearsal.scenario.scenario import name_of, own

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))

RUN_HERE = {"tpu doctor"}
RUN_BY_CI = {"make test", "make rehearse"}
RUN_BY_EVERY_TARGET = {"make setup && export PATH=$PWD/.venv/bin:$PATH"}
# In the guides, which are executed as printed: tests/docs/test_guides.py.
RUN_BY_A_GUIDE = {"tpu plan dev", "tpu preflight tiny.toml --slice v6e-16"}
# By its own scenario: the same words, with the rehearsal's script.
RUN_BY_A_SCENARIO = {"tpu run train.py --slice v6e-16": ("run", r"tpu run dev \S+ .*--slice v6e-16")}
# Half an hour, which CI doesn't have; that the command starts this scenario is checked here.
TOO_LONG = {"make rehearse SCENARIO=kills": "python -m cli rehearsal run kills"}


def commands() -> set[str]:
    blocks = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    inline = re.findall(r"`((?:make|pulumi|gcloud|python|tpu) [^`]*)`", README)
    return {line for line in [*lines, *inline] if line}


def test_every_command_of_the_readme_is_run_by_something() -> None:
    result = commands() - {"tpu publish", "tpu recover", "tpu rehearsal picture", "tpu run"}
    assert len(result) >= 7
    known = RUN_HERE | RUN_BY_CI | RUN_BY_EVERY_TARGET | RUN_BY_A_GUIDE
    assert result <= known | set(RUN_BY_A_SCENARIO) | set(TOO_LONG)
    for name, pattern in RUN_BY_A_SCENARIO.values():
        assert re.search(pattern, (ROOT / "rehearsal/scenarios" / f"{name}.py").read_text("utf-8"))
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert all(command in ci for command in RUN_BY_CI)


def test_the_readme_fits_on_a_screen_or_two() -> None:
    assert len(README.splitlines()) <= 80


@pytest.mark.parametrize(("command", "starts"), TOO_LONG.items())
def test_a_scenario_too_long_for_ci_comes_with_the_project(command: str, starts: str) -> None:
    words = [*command.split(), "-n"]
    output = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert starts in output
    assert (ROOT / "rehearsal" / "scenarios" / f"{starts.split()[-1].replace('-', '_')}.py").is_file()


def test_every_make_target_that_is_named_exists() -> None:
    documents = [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")]
    named = {
        name
        for path in documents
        for name in re.findall(r"(?:`|^ {4})make ([a-z]+)", path.read_text("utf-8"), re.MULTILINE)
    }
    assert named
    assert not named - TARGETS


def test_help_lists_every_target() -> None:
    output = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^  make ([a-z-]+) ", output, re.MULTILINE)) == TARGETS
    scenarios = map(name_of, own())
    assert f"SCENARIO={'|'.join(sorted(scenarios))} " in output


def test_doctor_says_what_it_found_and_how_to_mend_what_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "infra.doctor.machine"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    for subject in (
        "Python",
        "pulumi",
        "Go",
        "root",
        "/dev/fuse",
        "loop devices",
        "control groups",
        "Google login",
        "zone catalog",
        "price book",
    ):
        assert re.search(rf"(ok|missing|optional) +{re.escape(subject)} ", done.stdout), subject
    lines = done.stdout.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("  missing"):
            assert "fix: " in lines[number + 1]
    assert done.returncode == (1 if any(line.startswith("  missing") for line in lines) else 0)


@pytest.mark.parametrize(
    ("today", "state", "message"),
    [(date(2025, 4, 1), "ok", r"\d+ prices"), (date(2026, 12, 1), "optional", r"read more than 90 days ago")],
)
def test_doctor_warns_of_prices_that_are_old_and_fails_for_none(
    today: date, state: str, message: str
) -> None:
    prices = importlib.import_module("infra.doctor.machine").prices(today)
    assert prices.state == state
    assert re.search(message, prices.found)
    assert bool(prices.fix) == (state == "optional")


def test_doctor_blames_the_kernel_for_nothing_that_is_kept_from_a_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    doctor = importlib.import_module("infra.doctor.machine")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr(doctor, "output_of", lambda *_: None)
    mapping = {finding.what: (finding.found, finding.fix) for finding in doctor.machine()}
    assert mapping.pop("root") == ("uid 1000", "sudo make rehearse")
    del mapping["disk"]
    assert set(mapping) == {"/dev/fuse", "loop devices", "control groups", "namespaces", "firewall"}
    assert set(mapping.values()) == {("only root can tell", "sudo make doctor")}


@pytest.mark.parametrize("missing", ["go", "dpkg-query"])
def test_doctor_survives_a_machine_without(missing: str, tmp_path: Path) -> None:
    # A PATH with nothing but the interpreter: whatever the doctor calls isn't there.
    (tmp_path / "python3").symlink_to(sys.executable)
    done = subprocess.run(
        [sys.executable, "-m", "infra.doctor.machine"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert {"go": "Go ", "dpkg-query": "not Debian"}[missing] in done.stdout


@pytest.mark.parametrize(
    ("version", "content", "said"),
    [
        ("WANTED", "official", r"ok +gcp provider plugin +v"),
        (
            "WANTED",
            "exec python -m rehearsal.providers.gcp serve",
            r"optional +gcp .* but it is the stand-in",
        ),
        ("1.2.3", "official", r"optional +gcp .* not v\d.* but resource-gcp-v1\.2\.3"),
    ],
)
def test_doctor_tells_which_plugin_the_cli_would_take(
    version: str, content: str, said: str, tmp_path: Path
) -> None:
    desired = metadata.version("pulumi-gcp")
    folder = tmp_path / "plugins" / f"resource-gcp-v{version.replace('WANTED', desired)}"
    folder.mkdir(parents=True)
    (folder / "pulumi-resource-gcp").write_text(content)
    done = subprocess.run(
        [sys.executable, "-m", "infra.doctor.machine"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PULUMI_HOME": str(tmp_path)},
        check=False,
    )
    assert re.search(said, done.stdout), done.stdout


def test_generated_blocks_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "tools/docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
