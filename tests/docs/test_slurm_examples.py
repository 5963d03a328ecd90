"""The sbatch files of examples/slurm/: what a shell, the trainer and a stand-in for srun make of them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infra.settings import commands
from tools.blocks import ROOT
from workload.data.prepare import prepare
from workload.train import config as configs

EXAMPLES = ROOT / "examples/slurm"
FILES = sorted(EXAMPLES.rglob("*.sbatch"))
# What one task of a step on a slice of one host has.
STEP = {
    "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "tiny", "SLURM_PROCID": "0", "SLURM_NTASKS": "1",
    "SLURM_STEP_NODELIST": "tpu-0-w0", "SLURMD_NODENAME": "tpu-0-w0",
    "SLURM_TOPOLOGY_ADDR": "tpu.tpu-0.tpu-0-w0", "SLURM_NODE_ALIASES": "tpu-0-w0:[127.0.0.1]:localhost",
}  # fmt: skip
IMAGE = "us-docker.pkg.dev/my-project/images/mine@sha256:0"
SRUN = """\
#!/bin/bash
# Run the command after srun's options, as the one task of a step.
while [[ $1 == -* ]]; do shift; done
export {variables}
exec "$@"
"""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_a_job_that_slurm_takes(path: Path) -> None:
    content = path.read_bytes()
    assert content.startswith(b"#!/bin/bash\n")
    assert b"\r" not in content
    done = subprocess.run(["shellcheck", "--shell=bash", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    directives = re.findall(r"(?m)^#SBATCH (\S+)", content.decode())
    assert {"--requeue", "--open-mode=append"} <= set(directives)
    # sbatch would count the tasks of as many hosts as -N says, which are slices: srun counts them.
    assert not [option for option in directives if option.startswith("--ntasks")]
    assert re.findall(r"(?m)srun( --ntasks-per-node=1)? --label", content.decode()).count("") == 0
    assert not [option for option in directives if option.startswith("--mem")], "a job has its hosts whole"


def words_of(path: Path) -> list[str]:
    """Return the words of `workload train …` in a file."""
    script = path.read_text("utf-8").replace("\\\n", " ")
    match = re.search(r"workload (train [^']*?)( \"\$@\")?'", script)
    assert match, path
    return shlex.split(match[1])


def test_the_llama_is_the_recipe_of_the_sbatch_that_it_comes_from() -> None:
    run = commands.training(
        shlex.join(words_of(EXAMPLES / "llama-3.1-8b.sbatch")).replace(
            "$SLURM_JOB_NAME-$SLURM_JOB_ID", "llama-3.1-8b-7"
        )
    )
    assert run is not None
    config = configs.load(run.config, list(run.changes))
    assert (config.train.batch_size, config.data.sequence_length) == (64, 8192)
    assert (config.train.steps, config.observe.profile_from) == (30, 5)


def contained(folder: Path, srun_help: str = "") -> list[str]:
    """Return the lines that container.sbatch printed, with stand-ins for srun, sudo and docker."""
    programs = folder / "bin"
    programs.mkdir()
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in STEP.items())
    scripts = {
        "srun": f'#!/bin/bash\n[[ $1 != --help ]] || exec echo {srun_help}\nprintf "%s\\n" "$@"\n'
        + SRUN.format(variables=variables),
        "sudo": '#!/bin/bash\n[[ $1 == --preserve-env ]]\nexec "${@:2}"\n',
        # Its words, and the values that it would take over.
        "docker": '#!/bin/bash\nprintf "%s\\n" "$@"\n'
        'for word; do [[ $word != --env=* ]] || env | grep "^${word#--env=}="; done\n',
    }
    for name, text in scripts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (folder / ".bash_profile").write_text(
        f"export PATH={shlex.quote(path)} WORKER_ID=3 WORKER_COUNT=1 DATA_DIR=/mnt/data\n"
    )
    environment = {"PATH": path, "HOME": str(folder), "IMAGE": IMAGE, "SLURM_JOB_ID": "7"}
    words = [
        shutil.which("bash") or "bash",
        str(EXAMPLES / "container.sbatch"),
        "python",
        "-c",
        "print(1, 2)",
    ]
    return subprocess.run(
        words, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_a_container_of_docker_gets_the_place_that_the_launcher_gives(tmp_path: Path) -> None:
    lines = contained(tmp_path)
    words = lines[lines.index("run") :]
    image = words.index(IMAGE)
    assert words[image + 1 : image + 4] == ["python", "-c", "print(1, 2)"]
    assert {"--privileged", "--net=host", "--volume=/home:/home", "--env=SLURM_PROCID"} <= {*words[:image]}
    values = {
        "WORKER_ID=0", "WORKER_COUNT=1", "COORDINATOR_ADDRESS=127.0.0.1:8476", "DATA_DIR=/mnt/data",
        "OMPI_MCA_btl_tcp_if_exclude=docker0,127.0.0.0/8",
    }  # fmt: skip
    assert values <= {*words[image + 4 :]}


def test_a_container_of_pyxis_is_srun_s(tmp_path: Path) -> None:
    lines = contained(tmp_path, "--container-image=[USER@][REGISTRY#]IMAGE")
    assert f"--container-image={IMAGE}" in lines
    assert "docker" not in "".join(lines).replace("us-docker", "").replace("docker0", "")
    assert lines[lines.index("workload") : lines.index("workload") + 5] == [
        "workload", "launch", "--", "python", "-c",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_tiny_job_trains_as_a_task_of_srun(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    srun = programs / "srun"
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in STEP.items())
    srun.write_text(SRUN.format(variables=variables))
    srun.chmod(0o755)
    tokens = tmp_path / "tokens"
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    # What /etc/profile.d/tpu.sh does on a host.
    (tmp_path / ".bash_profile").write_text(f"export PATH={shlex.quote(path)} WORKER_ID=3 WORKER_COUNT=1\n")
    environment = {"PATH": path, "HOME": str(tmp_path), "TOKENS": str(tokens), "JAX_PLATFORMS": "cpu"}
    prepare([Path("/usr/share/common-licenses")], tokens)
    job = [shutil.which("bash") or "bash", str(EXAMPLES / "tiny.sbatch"), "--dir", str(tmp_path)]
    done = subprocess.run(
        [*job, "--set", "train.steps=12"],
        env=environment | {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "tiny"},
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WORKER_COUNT=1\n" in done.stdout
    assert (tmp_path / "runs/tiny-7/final.json").is_file()
