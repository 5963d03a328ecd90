"""Slurm's commands on a login node, over the command line of `slurm:ssh`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fleet.ssh import one_line, os_login_name
from infra.layers.slurm import names
from infra.layers.slurm.settings import SlurmSettings
from infra.settings.schema import Settings
from infra.settings.variables import NO_VARIABLES, Variables
from slurm import jobs
from slurm.errors import SlurmError
from slurm.jobs import JOB, Job

_TIMEOUT_S = 120.0
_MOST_BYTES = 4 << 20
"""Of a job script: SchedulerParameters, max_script_size. https://slurm.schedmd.com/slurm.conf.html"""
_NAMED = re.compile(r"^#SBATCH\s(.*\s)?(--job-name|-J)", re.MULTILINE)
_VENV = "/opt/tpu/venv/bin"  # of hosts
# The host prints a mark when the command begins, so that a failure of the connection isn't taken for its own.
_SCRIPT = 'echo "$0"; exec "$@"'


class Login:
    """A login node, reached as the caller."""

    def __init__(self, settings: Settings, number: int = 0):
        """Prepare the command line.

        Raises:
            SlurmError: there is no such login node, or the program isn't on this machine.
        """
        logins = names.logins(settings)
        if number >= len(logins):
            fix = "slurm:loginCount, then tpu up"
            raise SlurmError(f"login node {number}: there are {len(logins)}, the first is 0\n    fix: {fix}")
        template = settings[SlurmSettings].ssh
        self.settings, self.node = settings, logins[number]
        self._words = shlex.split(template)
        if shutil.which(self._words[0]) is None:
            fix = "install it, or say in slurm:ssh how login nodes are reached"
            raise SlurmError(f"slurm:ssh: {self._words[0]} isn't on PATH\n    fix: {fix}")
        self._login = os_login_name() if "{login}" in template else ""

    def line(self, command: str) -> list[str]:
        """Return the local command line for a line of shell; without one that of an interactive login."""
        words = [word for word in self._words if command or "{command}" not in word]
        fields = {
            "project": self.settings.project, "zone": names.zone(self.settings), "node": self.node,
            "login": self._login, "command": command,
        }  # fmt: skip
        return [word.format(**fields) for word in words]

    def run(self, command: Sequence[str], text: str = "", variables: Mapping[str, str] | None = None) -> str:
        """Run a command; return what it printed.

        Args:
            command: which no local shell reads.
            text: its input.
            variables: added to its environment.

        Raises:
            SlurmError: the node isn't reached, or the command fails.
        """
        mark = f"tpu slurm {uuid.uuid4().hex[:8]}"
        given = [f"{name}={value}" for name, value in (variables or {}).items()]
        words = ["bash", "-c", _SCRIPT, mark, *(["env", *given] if given else []), *command]
        line = self.line(shlex.join(words))
        try:
            done = subprocess.run(
                line, input=text, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise self._unreached(f"no end after {_TIMEOUT_S:.0f} s") from None
        except OSError as error:
            raise SlurmError(f"{line[0]} can't be started: {error.strerror}") from None
        before, begun, printed = done.stdout.partition(f"{mark}\n")
        if not begun:
            message = (done.stderr.strip() or before.strip() or f"status {done.returncode}").splitlines()[-1]
            raise self._unreached(message[:300])
        if done.returncode:
            raise SlurmError(_message(command[0], done.stderr, printed, done.returncode))
        return printed

    def interactive(self, command: Sequence[str] = ()) -> int:
        """Log in, or run a command, with this terminal; return the exit status.

        A single word is a line of shell.
        """
        line = self.line(one_line(command) if command else "")
        try:
            return subprocess.run(line, check=False, env=os.environ).returncode
        except OSError as error:
            raise SlurmError(f"{line[0]} can't be started: {error.strerror}") from None

    def _unreached(self, why: str) -> SlurmError:
        environment = self.settings.environment
        fix = f"tpu doctor {environment}; slurm:users says who may log in, slurm:ssh how"
        return SlurmError(f"{self.node} isn't reached: {why}\n    fix: {fix}")


def _message(program: str, errors: str, printed: str, status: int) -> str:
    """Return the message of a command of Slurm's, without its name in each line."""
    lines = [line.strip() for line in (errors.strip() or printed.strip()).splitlines()]
    lines = [line.removeprefix(f"{program}: error: ") for line in lines if line]
    return f"{program}: {'; '.join(lines[-4:])[:600] or f'status {status}'}"


def script(path: Path) -> str:
    """Read a job script. Raises SlurmError for one that sbatch would refuse, or that would fail on a host."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SlurmError(f"{path}: {error.strerror}") from None
    problems = []
    if b"\r\n" in content:
        problems.append(f"has lines that end with CRLF\n    fix: sed -i 's/\\r$//' {shlex.quote(str(path))}")
    if not content.startswith(b"#!"):
        problems.append("its first line names no interpreter\n    fix: begin it with #!/bin/bash")
    if b"\0" in content:
        problems.append("is no text: it has a NUL byte\n    fix: submit a script that starts the program")
    if len(content) > _MOST_BYTES:
        fix = "put data into the bucket or /home"
        problems.append(f"has {len(content):,} bytes, sbatch takes {_MOST_BYTES:,}\n    fix: {fix}")
    if problems:
        raise SlurmError("\n".join(f"{path}: {problem}" for problem in problems))
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise SlurmError(
            f"{path}: is not UTF-8 from byte {error.start} on\n    fix: save it as UTF-8"
        ) from None


def _started(text: str, variables: Variables) -> str:
    """Return a script whose interpreter has the secrets in its environment; its lines keep their numbers."""
    interpreter, _, rest = text.removeprefix("#!").partition("\n")
    return f"#!/usr/bin/env -S {_VENV}/{' '.join(variables.started([interpreter.strip()]))}\n{rest}"


class Queue:
    """The cluster's jobs, by Slurm's commands on a login node."""

    def __init__(self, login: Login):
        self._login = login

    def submit(self, path: Path, options: Sequence[str], variables: Variables = NO_VARIABLES) -> Job:
        """Submit a script with options of sbatch's; return the job.

        Args:
            path: of the script.
            options: of sbatch.
            variables: of the job's environment. The host that runs the script reads the secrets, since what
                sbatch gets is stored on the controller.

        Raises:
            SlurmError: the script or an option is refused, or the node isn't reached.
        """
        text, line = script(path), ["sbatch", "--parsable"]
        if not _NAMED.search(text):  # options go before the script's own
            line.append(f"--job-name={path.stem}")
        if given := variables.environment:
            if any(option.partition("=")[0] == "--export" for option in options):
                rule = "sbatch's own --export may leave out the variables of --env and --secret"
                raise SlurmError(f"--export: {rule}\n    fix: give all of them by --env, or by --export")
            line.append("--export=ALL")
        if variables.references:
            text = _started(text, variables)
        printed = self._login.run([*line, *options], text, given)
        id_ = (printed.strip().splitlines() or [""])[-1].partition(";")[0]
        if not JOB.fullmatch(id_):
            raise SlurmError(f"sbatch printed no job: {printed.strip()[:200]!a}")
        mine = [job for job in self.jobs() if job.base == id_]
        if not mine:  # it has ended already
            return Job(id_, "", "", "", 0, 0, "", "", "", "", path.stem)
        return replace(mine[0], id=id_)

    def jobs(self) -> list[Job]:
        """Return all jobs that haven't ended. Raises SlurmError."""
        return jobs.parse(self._login.run(["squeue", "--noheader", "--format", jobs.FORMAT]))

    def named(self, id_: str) -> list[Job]:
        """Return a job, or the parts of one. Raises SlurmError if there is none."""
        every = self.jobs()
        matching = [job for job in every if id_ in (job.id, job.base)]
        if not matching:
            present = ", ".join(job.id for job in every[:20]) or "none"
            raise SlurmError(f"no job {id_} waits or runs; those that do: {present}")
        return matching

    def cancel(self, id_: str) -> None:
        """Cancel a job. Raises SlurmError."""
        self._login.run(["scancel", id_])

    def output(self, id_: str) -> str:
        """Return the file of a job's output, on the login node. Raises SlurmError."""
        try:
            printed = self._login.run(["scontrol", "show", "job", id_])
        except SlurmError as error:
            if "Invalid job id" not in str(error):
                raise
            settings = self._login.settings
            known = f"sacct -j {id_}" if settings[SlurmSettings].accounting else f"tail slurm-{id_}.out"
            rule = "Slurm forgets a job a day after its end; by default its output stays in /home"
            fix = f"tpu slurm ssh {settings.environment} -- {known}"
            raise SlurmError(f"{error}: {rule}\n    fix: {fix}") from None
        for line in printed.splitlines():
            if line.strip().startswith("StdOut="):
                return line.strip().removeprefix("StdOut=")
        raise SlurmError(f"job {id_} has no file of output: it is interactive")
