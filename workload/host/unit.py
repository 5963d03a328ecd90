"""Turns a slice's `run` into the systemd unit of its job.

The words of `run` reach the program as they are: no shell, no systemd specifier and no
variable is expanded on the way (systemd.service(5), "COMMAND LINES").
"""

from __future__ import annotations

import re
import shlex
from hashlib import sha256
from pathlib import PurePosixPath

from workload.host.errors import RunError

__all__ = ["command_id", "job_unit"]

_SUBCOMMAND = re.compile(r"[a-z][a-z0-9-]*")
_PROGRAM = re.compile(r"/[A-Za-z0-9._+/-]+")

# Preemption gives 30 s of notice; two are left for the machine to unmount.
STOP_TIMEOUT_S = 28

# systemd makes its folder for the job's user, and anew at every start.
_PLACE = PurePosixPath("/run/tpu-job/environment")

_UNIT = """\
[Unit]
Description=TPU job: {program}
Wants=network-online.target tpu-checkpoints.service
After=network-online.target tpu-checkpoints.service
StartLimitIntervalSec=3600
StartLimitBurst=20

[Service]
Type=exec
User=tpu
Group=tpu
StateDirectory=tpu/job
WorkingDirectory=/opt/training
Environment=HOME=/var/lib/tpu/job
EnvironmentFile=/etc/tpu/environment
Environment=TPU_COMMAND={id}
# What the barrier finds out, for a job of several slices; read after it, and over the former.
RuntimeDirectory={place.parent.name}
EnvironmentFile=-{place}
# The barrier bounds its own wait and says who is missing.
TimeoutStartSec=infinity
ExecStartPre=/opt/tpu/venv/bin/python -m workload.host barrier --phase job --environment {place}
ExecStart={command}
# The trainer saves on SIGTERM; its children get theirs from it, or SIGKILL at the end.
KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec={stop_timeout_s}
Restart=on-failure
RestartSec=5
# 2 is what the workload says of settings that can't work: starting again changes nothing.
RestartPreventExitStatus=2
# JAX aborts where a peer is lost; the dump of a host's memory would fill its disk.
LimitCORE=0
# libtpu locks the memory that the chips read.
LimitMEMLOCK=infinity
LimitNOFILE=1048576
"""


def job_unit(run: str) -> str:
    """Return the text of `tpu-job.service` for `run`, e.g. `train tiny.toml`.

    The first word is a subcommand of the workload or a program's absolute path. Raises
    `RunError` where it is neither, or where a word can't stand in a unit.
    """
    try:
        words = shlex.split(run)
    except ValueError as error:
        raise RunError(
            f"tpu:slices run: {run!r} can't be split into words ({error}): close the quote"
        ) from error
    if not words:
        raise RunError("tpu:slices run: is empty: name what to run, or leave it out")
    if any(not character.isprintable() for word in words for character in word):
        raise RunError(f"tpu:slices run: {run!r} holds a control character: write it without line breaks")
    program, *arguments = words
    if _PROGRAM.fullmatch(program):
        command = [program]
    elif _SUBCOMMAND.fullmatch(program):
        command = ["/opt/tpu/venv/bin/workload", _quoted(program)]
    else:
        raise RunError(
            f"tpu:slices run: starts with {program!r}: start it with a subcommand of the workload "
            "(e.g. train) or with an absolute path (e.g. /opt/training/start)"
        )
    command += [_quoted(word) for word in arguments]
    return _UNIT.format(
        program=program,
        id=command_id(run),
        place=_PLACE,
        command=" ".join(command),
        stop_timeout_s=STOP_TIMEOUT_S,
    )


def command_id(run: str) -> str:
    """What tells one command from another in a worker's word (docs/architecture.md)."""
    return sha256(run.strip().encode()).hexdigest()[:12]


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
