"""Container of a slice's `run`, by Docker, which TPU VMs have: pull its image, start its program.

The flags are Google's: https://cloud.google.com/tpu/docs/run-in-container. The token is one of the attached
service account, and is kept in memory:
https://cloud.google.com/artifact-registry/docs/docker/authentication#token
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from workload.host.errors import HostError, PassingError
from workload.host.metadata import access_token

NAME = "tpu-job"
_INTERPRETERS = ("bash", "python", "python3", "sh")
_OF_REGISTRIES = ("-docker.pkg.dev", ".gcr.io")
_MEMORY = "/run"
_PUBLIC = "mirror.gcr.io"
_MISSING = 127  # https://docs.docker.com/engine/containers/run/#exit-status
# Of systemd's service and this host, not of the program.
_OF_HOST = frozenset({
    "HOME", "INVOCATION_ID", "JOURNAL_STREAM", "LOGNAME", "NOTIFY_SOCKET", "PATH",
    "RUNTIME_DIRECTORY", "SHELL", "STATE_DIRECTORY", "SYSTEMD_EXEC_PID", "USER",
})  # fmt: skip
# A barrier that begins before a slow host has pulled its image would time out: the boot pulls.
_PULL = ("docker", "pull", "--quiet")
# /mnt's mounts come and go with gcsfuse: rshared. The journal has the output: no second log fills the disk.
_RUN = (
    "docker", "run", "--rm", "--init", f"--name={NAME}", "--pull=never", "--privileged", "--network=host",
    "--ipc=host", "--ulimit=memlock=-1", "--ulimit=nofile=1048576", "--ulimit=core=0", "--log-driver=none",
    "--volume=/mnt:/mnt:rshared", "--volume=/opt/training:/opt/training", "--workdir=/opt/training",
)  # fmt: skip


def prepare(image: str, words: Sequence[str]) -> str:
    """Pull an image, unless the host has it, and check that it has the program's interpreter.

    Returns what was done. Raises PassingError where a repetition may help, HostError where none does.
    """
    if not shutil.which("docker"):
        raise HostError("this host's image has no Docker: set tpu:runtimeVersion to one that has")
    if _docker("docker", "image", "inspect", image).returncode == 0:
        done = f"{image} is here already"
    else:
        _pull(image)
        done = f"pulled {image}"
    program = words[0]
    if program in _INTERPRETERS:
        tried = _docker("docker", "run", "--rm", "--pull=never", "--network=none", f"--entrypoint={program}",
                        image, "-c", "")  # fmt: skip
        if tried.returncode == _MISSING:
            fix = "name a program of the image, such as /usr/bin/python3.12, or add it to the image"
            raise HostError(f"{_short(image)} has no `{program}`: {fix}")
    return done


def _pull(image: str) -> None:
    with tempfile.TemporaryDirectory(dir=_MEMORY, prefix="tpu-pull.") as folder:
        path = Path(folder, "config.json")
        path.touch(mode=0o600)
        path.write_text(json.dumps({"auths": _logins(image.partition("/")[0])}))
        pulled = _docker(*_PULL, image, config=folder)
    if pulled.returncode == 0:
        return
    # Codes of registries: https://github.com/opencontainers/distribution-spec/blob/main/spec.md#error-codes
    text = " ".join(pulled.stderr.split())
    if "manifest unknown" in text or "name unknown" in text:
        raise HostError(f"{_short(image)} isn't in its registry: push it, and run it by the digest printed")
    if "denied" in text or "unauthorized" in text:
        repository = "/".join(image.split("/")[:3])
        fix = "add it to storage:repositories, then tpu up ENV storage"
        raise PassingError(f"403: the hosts' account may not pull from {repository}: {fix}")
    raise PassingError(f"{_short(image)} can't be pulled: {text[-120:]}")


def _logins(host: str) -> dict[str, dict[str, str]]:
    if host == _PUBLIC or not f".{host}".endswith(_OF_REGISTRIES):
        return {}
    login = f"oauth2accesstoken:{access_token()}"
    return {host: {"auth": base64.b64encode(login.encode()).decode()}}


def _docker(*command: str, config: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"DOCKER_CONFIG": config} if config else {})}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, errors="replace", check=False
    )


def _short(image: str) -> str:
    """Return an image's name with the beginning of its digest: a status has 200 characters."""
    name, _, digest = image.partition("@sha256:")
    return f"{name.rpartition('/')[2]}@sha256:{digest[:12]}"


def command(image: str, words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command that starts a program in a container, with the variables' names alone.

    `--init` passes SIGTERM on to a program that would ignore it as the first of its container.
    """
    names = sorted(environment.keys() - _OF_HOST)
    program, *arguments = words
    variables = [f"--env={name}" for name in names]
    return [*_RUN, *variables, f"--entrypoint={program}", image, *arguments]


def start(image: str, words: Sequence[str]) -> None:
    """Become `docker run`, which passes signals on and ends with the program's exit status.

    Raises HostError for an image that can't be run, which ends the job.
    """
    prepare(image, words)
    subprocess.run(
        ("docker", "rm", "--force", NAME), capture_output=True, check=False
    )  # of a host that crashed
    line = command(image, words, os.environ)
    os.execvp(line[0], line)
