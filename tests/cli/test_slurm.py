"""`tpu slurm` beside a login node whose programs print what Slurm's did (tests/slurm/outputs/README.md)."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from cli import slurm as command
from cli.__main__ import main
from infra.settings.schema import Settings
from infra.settings.variables import Variables
from slurm import client
from tests.slurm import lab

OUTPUTS = Path(__file__).parents[1] / "slurm" / "outputs"


class Node:
    """A login node: a folder with its programs, which note their words."""

    def __init__(self, root: Path):
        self.bin, self.log = root / "bin", root / "log"
        self.bin.mkdir()
        self.program("ssh", f'shift\nPATH={self.bin}:$PATH exec sh -c "$1"', noted=False)
        self.prints("squeue", (OUTPUTS / "squeue.txt").read_text("utf-8"))
        self.prints("scontrol", (OUTPUTS / "job.txt").read_text("utf-8"))
        self.program("scancel", "true")
        self.program("sbatch", f"cat > {root}/script; echo 9")
        self.script = root / "script"

    def program(self, program: str, line: str, *, noted: bool = True) -> None:
        note = f'printf "%s\\n" "{program} $*" >> {self.log}\n' if noted else ""
        path = self.bin / program
        path.write_text(f"#!/bin/sh\n{note}{line}\n")
        path.chmod(0o755)

    def prints(self, program: str, text: str) -> None:
        (self.bin / f"{program}.txt").write_text(text)
        self.program(program, f"cat {self.bin}/{program}.txt")

    @property
    def noted(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture(name="node")
def _node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node(tmp_path)

    def settings(_: str) -> Settings:
        return lab.settings({"slurm:ssh": f"{node.bin}/ssh {{node}} {{command}}"})

    monkeypatch.setattr(command, "from_file", settings)
    return node


@pytest.fixture(name="job")
def _job(tmp_path: Path) -> Path:
    path = tmp_path / "train.sbatch"
    path.write_text("#!/bin/bash\nsrun hostname\n")
    return path


def test_a_script_is_submitted_with_sbatchs_own_options(
    node: Node, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slurm", "submit", "dev", str(job), "--", "-p", "tpu", "--comment=a b;c"]) == 0
    assert node.noted[0] == "sbatch --parsable --job-name=train -p tpu --comment=a b;c"
    assert node.script.read_text() == job.read_text()
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("job 9: 2 hosts of tpu, $")
    assert "pending, number 1 in the queue, BeginTime, planned for 2026-11-26T20:28:39" in out[0]
    assert out[1:] == [
        "  output:  tpu slurm logs dev 9 --follow",
        "  end it:  tpu slurm cancel dev 9",
    ]


@pytest.mark.parametrize("line", ["--job-name=mine", "-N 1 -J mine", "-Jmine"])
def test_a_script_keeps_its_own_name(node: Node, job: Path, line: str) -> None:
    job.write_text(f"#!/bin/bash\n#SBATCH {line}\nsrun hostname\n")
    assert main(["slurm", "submit", "dev", str(job)]) == 0
    assert node.noted[0] == "sbatch --parsable"


def test_variables_go_to_sbatch_and_the_scripts_interpreter_reads_the_secrets(
    node: Node, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.variables, "problems", lambda *_: iter(()))
    node.program("sbatch", f'echo "$A|$TPU_SECRETS|$*" > {node.bin}/seen; cat > {node.script}; echo 9')
    job.write_text("#!/bin/bash -e\nsrun hostname\n")
    line = ["slurm", "submit", "dev", str(job), "--env", "A=x, 'y'", "--secret", "hf-token", "--", "-N", "1"]
    assert main(line) == 0
    seen = (node.bin / "seen").read_text().strip()
    assert seen == "x, 'y'|hf-token@latest:HF_TOKEN|--parsable --job-name=train --export=ALL -N 1"
    first, *rest = node.script.read_text().splitlines()
    assert first == "#!/usr/bin/env -S /opt/tpu/venv/bin/workload secrets -- /bin/bash -e"
    assert rest == ["srun hostname"]


def test_a_script_with_secrets_runs_by_its_own_interpreter(tmp_path: Path) -> None:
    """The kernel passes all behind the interpreter as one word."""
    starter = tmp_path / "workload"
    starter.write_text('#!/bin/sh\n[ "$1 $2" = "secrets --" ] && shift 2 && HF_TOKEN=value exec "$@"\n')
    starter.chmod(0o755)
    text = client._started('#! /bin/bash -e\necho "$-|$HF_TOKEN|$1|$LINENO"\n', Variables({}, ("hf-token",)))
    script = tmp_path / "slurm_script"
    script.write_text(text.replace("/opt/tpu/venv/bin", str(tmp_path)))
    script.chmod(0o755)
    done = subprocess.run([script, "an argument"], capture_output=True, text=True, check=True)
    assert done.stdout == "ehB|value|an argument|2\n"


def test_plain_variables_leave_the_script_as_it_is(node: Node, job: Path) -> None:
    assert main(["slurm", "submit", "dev", str(job), "--yes", "--env", "A=1"]) == 0
    assert node.script.read_text() == job.read_text()


def test_an_export_of_ones_own_beside_variables_is_refused(
    node: Node, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slurm", "submit", "dev", str(job), "--env", "A=1", "--", "--export=NONE"]) == 1
    assert "--export: sbatch's own --export may leave out the variables" in capsys.readouterr().err
    assert node.noted == []


@pytest.mark.parametrize(("content", "message"), [
    (b"#!/bin/bash\r\necho\r\n", "has lines that end with CRLF\n    fix: sed -i 's/\\r$//'"),
    (b"echo hi\n", "its first line names no interpreter\n    fix: begin it with #!/bin/bash"),
    (b"", "its first line names no interpreter"),
    (b"#!/bin/bash\n\0", "is no text"),
    (b"#!/bin/bash\n\xff\n", "is not UTF-8 from byte 12 on"),
    (b"#!" + b"x" * (4 << 20), "sbatch takes 4,194,304"),
])  # fmt: skip
def test_a_script_that_would_fail_is_refused_before_it_is_sent(
    node: Node, job: Path, content: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job.write_bytes(content)
    assert main(["slurm", "submit", "dev", str(job)]) == 1
    assert message in capsys.readouterr().err
    assert node.noted == []


def test_two_problems_of_a_script_are_told_together(
    node: Node, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.write_bytes(b"echo\r\n")
    assert main(["slurm", "submit", "dev", str(job)]) == 1
    error = capsys.readouterr().err
    assert "CRLF" in error
    assert "interpreter" in error


def test_a_script_that_isnt_there_is_named(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slurm", "submit", "dev", f"{tmp_path}/none"]) == 1
    assert "none: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("given", [[], ["--env", "A=1"]])
def test_what_sbatch_refuses_is_its_own_message(
    node: Node, job: Path, given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    message = "sbatch: error: Batch job submission failed: Requested node configuration is not available"
    node.program("sbatch", f"echo '{message}' >&2; exit 1")
    assert main(["slurm", "submit", "dev", str(job), *given]) == 1
    error = capsys.readouterr().err
    assert "sbatch: Batch job submission failed: Requested node configuration is not available" in error


def test_jobs_come_with_place_and_price(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slurm", "status", "dev"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["job", "user", "partition", "name", "hosts", "$/h", "time", "state"]
    assert rows[3].split("  ")[0] == "10"
    assert "odd | name" in rows[3]
    assert "pending, number 2 in the queue, ReqNodeNotAvail" in rows[3]
    assert main(["slurm", "status", "dev", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [job["place"] for job in listed] == [0, 0, 1, 2, 3, 4, 5]
    assert listed[1]["hourly_usd"] > 0


def test_an_empty_queue_says_what_comes_next(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.prints("squeue", "")
    assert main(["slurm", "status", "dev"]) == 0
    assert capsys.readouterr().out == "no jobs\n  next: tpu slurm submit dev job.sbatch\n"


def test_a_job_is_cancelled_once_it_is_known(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    """scancel program nothing of a job that isn't there."""
    assert main(["slurm", "cancel", "dev", "999", "--yes"]) == 1
    assert "no job 999 waits or runs; those that do: 13_1, 13_0, 9" in capsys.readouterr().err
    assert main(["slurm", "cancel", "dev", "9"]) == 1
    assert "Cancel 9 of ann, which is pending" in capsys.readouterr().err
    assert main(["slurm", "cancel", "dev", "13", "--yes"]) == 0
    assert [line for line in node.noted if line.startswith("scancel")] == ["scancel 13"]


def test_a_heterogeneous_job_is_one_job(node: Node, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [f"9+{part}|ann|tpu|PENDING|4|3|0:00|N/A|None||train\n" for part in (0, 1)]
    node.prints("squeue", "".join(parts))
    assert main(["slurm", "submit", "dev", str(job), "--", "-N", "1", ":", "-N", "1"]) == 0
    assert capsys.readouterr().out.startswith("job 9: 4 hosts of tpu, $")
    assert main(["slurm", "cancel", "dev", "9", "--yes"]) == 0
    assert node.noted[-1] == "scancel 9"


@pytest.mark.parametrize("word", ["x", "1;reboot", "-u", "$(id)", "1_"])
def test_what_is_no_job_is_refused(node: Node, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slurm", "cancel", "dev", "--yes", "--", word]) in (1, 2)
    assert node.noted == []


def test_output_is_the_jobs_file(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.prints("tail", "step 1\n")
    assert main(["slurm", "logs", "dev", "15", "--lines", "5"]) == 0
    assert node.noted == ["scontrol show job 15", "tail --lines=5 -- /tmp/slurm-13_1.out"]
    assert capsys.readouterr().out == "step 1\n"
    assert main(["slurm", "logs", "dev", "15", "--follow"]) == 0
    assert node.noted[-1] == "tail --lines=100 --follow=name --retry -- /tmp/slurm-13_1.out"


@pytest.mark.parametrize(("accounting", "known"), [(True, "sacct -j 99"), (False, "tail slurm-99.out")])
def test_a_job_that_slurm_has_forgotten_is_looked_for_elsewhere(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    accounting: bool,
    known: str,
) -> None:
    given = {"slurm:ssh": f"{node.bin}/ssh {{node}} {{command}}", "slurm:accounting": accounting}
    monkeypatch.setattr(command, "from_file", lambda _: lab.settings(given))
    node.program("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert main(["slurm", "logs", "dev", "99"]) == 1
    error = capsys.readouterr().err
    assert "Invalid job id specified: Slurm forgets a job a day after its end" in error
    assert f"fix: tpu slurm ssh dev -- {known}\n" in error


def test_a_login_is_the_terminals_or_a_command(node: Node) -> None:
    node.program("sinfo", "exit 3")
    assert main(["slurm", "ssh", "dev", "--", "sinfo", "-N"]) == 3
    assert node.noted == ["sinfo -N"]
    assert main(["slurm", "ssh", "dev", "--", "sinfo -N; sinfo -R"]) == 3, "as tpu fleet exec has it"
    assert node.noted[1:] == ["sinfo -N", "sinfo -R"]


def test_a_login_node_that_isnt_reached_is_told_with_who_may(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.program(
        "ssh", "echo 'ERROR: (gcloud.compute.ssh) [4033: not authorized]' >&2; exit 255", noted=False
    )
    assert main(["slurm", "status", "dev"]) == 1
    error = capsys.readouterr().err
    assert "slurm-dev-login-0 isn't reached: ERROR: (gcloud.compute.ssh) [4033: not authorized]" in error
    assert "fix: tpu doctor dev; slurm:users says who may log in" in error


def test_a_login_node_that_there_isnt_is_refused(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slurm", "status", "dev", "--login", "3"]) == 1
    assert "login node 3: there are 1, the first is 0" in capsys.readouterr().err


def test_a_program_that_isnt_here_is_named(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert main(["slurm", "status", "dev"]) == 1
    assert "isn't on PATH\n    fix: install it, or say in slurm:ssh" in capsys.readouterr().err


def test_without_the_layer_there_is_no_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        command, "from_file", lambda _: lab.settings({"slurm:nodesets": None, "slurm:bundle": None})
    )
    assert main(["slurm", "status", "dev"]) == 2
    assert "slurm is off in dev" in capsys.readouterr().err
