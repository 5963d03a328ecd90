"""A slice's program in a container: its image is pulled in the boot, its command is Docker's.

`docker` is a script here that records its arguments and answers as Docker does.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from infra.settings import commands
from workload.host import container
from workload.host.__main__ import main
from workload.host.unit import job_unit

HOST = "us-east5-docker.pkg.dev"
IMAGE = f"{HOST}/my-project/images/mine@sha256:{'ab' * 32}"
# What Docker 27 prints, by the part of its command.
_DOCKER = """\
#!/bin/sh
printf '%s\\n' "$*" >>"$RECORD/calls"
[ -z "$DOCKER_CONFIG" ] || cp "$DOCKER_CONFIG/config.json" "$RECORD/config.json"
case $1 in
  image) exit "$HAS" ;;
  pull) [ -z "$PULL" ] || { echo "Error response from daemon: $PULL" >&2; exit 1; } ;;
  run) exit "$INTERPRETER" ;;
esac
"""


@pytest.fixture(name="docker")
def _docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "docker"
    program.write_text(_DOCKER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name, value in {"RECORD": str(tmp_path), "HAS": "1", "PULL": "", "INTERPRETER": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DOCKER_CONFIG", raising=False)
    monkeypatch.setattr(container, "access_token", lambda: "ya29.token")
    monkeypatch.setattr(container, "_MEMORY", str(tmp_path))
    return tmp_path


def prepared(monkeypatch: pytest.MonkeyPatch, image: str = IMAGE, run: str = "python train.py") -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(run))
    return main(["image", image])


def calls(docker: Path) -> list[str]:
    return (docker / "calls").read_text().splitlines()


def test_an_image_is_pulled_with_the_hosts_token_which_stays_nowhere(
    docker: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepared(monkeypatch) == 0
    assert capsys.readouterr().out == f"pulled {IMAGE}\n"
    assert calls(docker) == [
        f"image inspect {IMAGE}",
        f"pull --quiet {IMAGE}",
        f"run --rm --pull=never --network=none --entrypoint=python {IMAGE} -c ",
    ]
    login = json.loads((docker / "config.json").read_text())
    assert login == {"auths": {HOST: {"auth": "b2F1dGgyYWNjZXNzdG9rZW46eWEyOS50b2tlbg=="}}}
    assert [path.name for path in docker.glob("tpu-pull.*")] == []


def test_an_image_that_is_there_is_not_pulled_again(
    docker: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HAS", "0")
    assert prepared(monkeypatch, run="./start.sh") == 0
    assert calls(docker) == [f"image inspect {IMAGE}"]
    assert "is here already" in capsys.readouterr().out


def test_a_public_image_is_pulled_without_a_token(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepared(monkeypatch, f"mirror.gcr.io/library/python@sha256:{'ab' * 32}") == 0
    assert json.loads((docker / "config.json").read_text()) == {"auths": {}}


@pytest.mark.parametrize(("pull", "status", "message"), [
    (f"manifest for {IMAGE} not found: manifest unknown: Failed to fetch", 1,
     "mine@sha256:abababababab isn't in its registry: push it, and run it by the digest printed"),
    ('denied: Permission "artifactregistry.repositories.downloadArtifacts" denied on resource', 75,
     f"403: the hosts' account may not pull from {HOST}/my-project/images: add it to storage:repositories, "
     "then tpu up ENV storage"),
    ("Get: dial tcp: i/o timeout", 75, "can't be pulled: Error response from daemon: Get: dial tcp"),
])  # fmt: skip
def test_a_pull_that_fails_ends_in_one_line_with_the_next_command(
    pull: str, status: int, message: str, docker: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("PULL", pull)
    assert prepared(monkeypatch) == status, "75 is tried again"
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert len(printed.removeprefix("workload host image: ")) <= 200, "as much as a status takes"


def test_an_image_without_the_interpreter_is_refused_before_the_job(
    docker: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTERPRETER", "127")
    assert prepared(monkeypatch) == 1
    assert "mine@sha256:abababababab has no `python`: name a program of the image" in capsys.readouterr().err


def test_a_host_without_docker_is_refused(
    docker: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(docker / "nothing"))
    assert prepared(monkeypatch) == 1
    assert "has no Docker: set tpu:runtimeVersion" in capsys.readouterr().err


def test_the_container_gets_the_programs_variables_by_name_and_the_words_as_they_are() -> None:
    environment = {"WORKER_ID": "0", "HF_TOKEN": "a secret", "PATH": "/opt", "HOME": "/root", "A": "1 2"}
    line = container.command(IMAGE, ["python", "a b.py", "$X"], environment)
    assert line[:2] == ["docker", "run"]
    assert {"--privileged", "--network=host", "--init", "--rm", "--workdir=/opt/training"} <= {*line}
    assert {"--volume=/mnt:/mnt:rshared", "--volume=/opt/training:/opt/training"} <= {*line}
    variables = [word.removeprefix("--env=") for word in line if word.startswith("--env")]
    assert variables == ["A", "HF_TOKEN", "WORKER_ID"]
    assert "a secret" not in " ".join(line)
    assert line[-4:] == ["--entrypoint=python", IMAGE, "a b.py", "$X"]


def test_the_unit_starts_docker_as_root_and_leaves_no_container() -> None:
    lines = job_unit("python 'a b.py'", {"TPU_SECRETS": "hf@latest:HF"}, IMAGE).splitlines()
    (command,) = [line for line in lines if line.startswith("ExecStart=")]
    assert command == (
        "ExecStart=/opt/tpu/venv/bin/workload secrets -- /opt/tpu/venv/bin/python -m workload.host container "
        f'"{IMAGE}" python "a b.py"'
    )
    assert {
        "User=root", "ExecStopPost=-docker rm --force tpu-job", "SuccessExitStatus=143",
        "RestartPreventExitStatus=2 126 127", "TimeoutStopSec=28",
        "After=network-online.target tpu-checkpoints.service docker.service",
    } <= {*lines}  # fmt: skip
    plain = job_unit("python train.py")
    assert "docker" not in plain
    assert "User=tpu" in plain


@pytest.mark.parametrize("program", [*commands.COMMANDS, commands.HOST_COMMAND])
def test_commands_of_the_workload_start_in_no_container(program: str) -> None:
    with pytest.raises(Exception, match="begin with"):
        job_unit(program, image=IMAGE)
    assert job_unit("./start.sh x", image=IMAGE).count('" /opt/training/start.sh "x"\n') == 1
