"""The command line of `tpu`: what there is, what isn't, and how it ends."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from cli.__main__ import COMMANDS, SUBCOMMANDS, main, tpu
from cli.completion import VARIABLE
from tests.limits import HANG_S

ROOT = Path(__file__).resolve().parents[2]
TPU = ROOT / ".venv" / "bin" / "tpu"


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("preview dev", "tpu plan"),
        ("destroy dev", "tpu down"),
        ("recreate-preempted dev", "tpu recover"),
        ("monitor dev", "tpu status ENV --watch"),
        ("train tiny.toml", "tpu workload train"),
        ("settle dev", "tpu infra settle"),
        ("statsu dev", "tpu status"),
        ("xyzzy", "tpu --help lists them"),
        ("fleet recovr dev", "tpu fleet recover"),
    ],
)
def test_a_command_of_before_or_with_a_typo_names_the_right_one(
    line: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    output = capsys.readouterr()
    name = line.removeprefix("fleet ").split()[0]
    assert output.err == f"error: no command {name}\n    fix: {fix}\n"
    assert output.out == ""


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert (main(["--help"]), main([])) == (0, 2)
    output = capsys.readouterr().out
    assert all(f"\n  {name} " in output for name in {**COMMANDS, **SUBCOMMANDS})


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "preflight"])
def test_each_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"Usage: tpu {name} ")
    assert f"tpu {name}" in output.partition("Examples:")[2]


def test_the_help_of_status_shows_how_to_watch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--help"]) == 0
    assert "tpu status dev --watch --port 8899\n" in capsys.readouterr().out


@pytest.mark.parametrize("line", [
    "runs show dev mine --out gs://bucket/page.html",
    "plan dev --save gs://bucket/plans",
    "fleet exec dev --logs gs:/bucket/logs -- id",
    "job submit dev vision --out gs://bucket/job.yaml -- train tiny.toml",
    "slurm submit dev gs://bucket/job.sbatch",
    "policy dev --terraform s3://bucket/plan.json",
    "run dev gs://bucket/train.py --slice v6e-8",
    "rehearsal run --report gs://bucket/report",
])  # fmt: skip
def test_a_url_where_a_path_is_needed_is_refused_by_name(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    (url,) = re.findall(r"\S+:/\S+", line)
    assert f"{url}: must be a path of this machine\n    fix: " in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("words", ["preflight", "workload", "workload checkpoints list"])
def test_forwarded_commands_are_named_as_typed(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), "--help"])
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert output.startswith(f"usage: tpu {words} ")
    assert f" tpu {words} " in output.partition("example")[2]
    assert " workload " not in " ".join(output.split()).replace("tpu workload ", "")


@pytest.mark.parametrize(
    "name", [name for name in COMMANDS if name not in ("preflight", "doctor", "completion")]
)
def test_an_environment_that_is_not_there_names_the_nearest(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"ssh": ["node"], "run": ["train.py", "--slice", "v6e-1"]}.get(name, [])
    assert main([name, "dve", *more]) == 1
    output = capsys.readouterr().err
    assert "Pulumi.dve.yaml does not exist (environments: dev, prod)" in output
    assert "fix: perhaps dev was meant" in output
    assert "Traceback" not in output


def run(line: list[str], **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        line, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False, **more
    )


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    # The reader is gone before anything is printed.
    done = run(["bash", "-c", f"(sleep 1; exec {TPU} infra prices prod) | true; echo ${{PIPESTATUS[0]}}"])
    assert done.stderr == ""
    assert int(done.stdout.split()[-1]) == 141


def _interruptible() -> None:
    """Take SIGINT as a terminal's command does: a job in a shell's background ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_while_it_starts_is_no_traceback(tmp_path: Path) -> None:
    launcher = "source <(sed -n '/^launcher()/,/^}/p' \"$0\"); launcher bin/tpu cli.__main__"
    subprocess.run(["bash", "-c", launcher, ROOT / "tools" / "setup.sh"], cwd=tmp_path, check=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert run([str(python.with_name("tpu")), "--help"]).stdout.startswith("Usage: tpu ")
    for delay_s in (0.02, 0.04, 0.06, 0.1, 0.15, 0.2):
        line = [python.with_name("tpu"), "status", "dev"]
        child = subprocess.Popen(line, cwd=ROOT, stderr=subprocess.PIPE, text=True, preexec_fn=_interruptible)
        time.sleep(delay_s)
        child.send_signal(signal.SIGINT)
        _, output = child.communicate(timeout=HANG_S)
        assert "Traceback" not in output
        # An interpreter that isn't initialized yet aborts by itself, before it runs any code of ours.
        assert child.returncode in (130, -signal.SIGINT, -signal.SIGABRT)


def test_an_output_that_is_full_is_one_line() -> None:
    done = run(["bash", "-c", f"{TPU} infra prices dev > /dev/full"])
    assert done.returncode == 1
    assert done.stderr == "error: the output can't be written: No space left on device\n"


def test_it_works_on_the_checkout_around_the_working_directory(tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "cli").mkdir(parents=True)
    (other / "cli" / "__main__.py").write_text("def entry():\n    print('the other one')\n")
    nested = other / "a" / "b"
    nested.mkdir(parents=True)
    done = subprocess.run([str(TPU)], cwd=nested, capture_output=True, text=True, check=False)
    assert done.stdout == "the other one\n"


def test_help_fits_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["plan", "--help"]) == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert max(map(len, output.splitlines())) <= 50, "click's smallest width"


def test_importing_the_command_line_waits_for_no_library() -> None:
    slow = {"jax", "pulumi", "matplotlib", "google.cloud"}
    code = f"import sys, cli.__main__; print(sorted({slow} & set(sys.modules)))"
    assert run([sys.executable, "-c", code]).stdout == "[]\n"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["sta"], {"status"}),
        (["re"], {"restart", "recover", "rehearsal"}),
        (["plan", ""], {"dev", "prod"}),
        (["plan", "p"], {"prod"}),
        (["plan", "dev", "--f"], {"--format", "--full"}),
        (["fleet", "recover", "--d"], {"--dry-run"}),
        (["workload", "train", "--n"], {"--name"}),
    ],
)
def test_the_shell_completes_commands_environments_and_options(typed: list[str], expected: set[str]) -> None:
    *before, incomplete = typed
    completions = ShellComplete(tpu, {}, "tpu", VARIABLE).get_completions(before, incomplete)
    assert {item.value for item in completions} == expected


def test_completion_scripts_call_the_command() -> None:
    line = "COMP_WORDS=(tpu sta); COMP_CWORD=1; _tpu_completion tpu; echo ${COMPREPLY[*]}"
    script = f'export PATH={TPU.parent}:$PATH; eval "$(tpu completion bash)"; {line}'
    assert run(["bash", "-c", script]).stdout == "status\n"


@pytest.mark.parametrize(
    ("shell", "part"), [("zsh", "compdef _tpu_completion tpu"), ("fish", "complete --no-files --command tpu")]
)
def test_each_shell_has_a_completion_script(
    shell: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    assert part in capsys.readouterr().out


def test_a_line_reaches_a_pipe_before_the_command_ends() -> None:
    program = "import sys; from cli.__main__ import main; main(['--help']); print(sys.stdout.line_buffering)"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert output.stdout.splitlines()[-1] == "True"
