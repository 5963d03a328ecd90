"""The systemd units of a host: a slice's `run` as a job, its heartbeat, the host's logs.

The words of `run` reach the program as they are: no shell, no systemd specifier and no
variable is expanded on the way (systemd.service(5), "COMMAND LINES").
"""

from __future__ import annotations

import re
import shlex
from hashlib import sha256
from pathlib import PurePosixPath

from workload.host.errors import RunError

__all__ = ["COMMANDS", "STOPPED", "command_id", "heartbeat_unit", "job_unit", "logs_unit", "words"]

# The same rule as in infra/settings/commands.py: what no host can start is refused before it is paid for.
COMMANDS = ("activations", "checkpoints", "data", "extract", "goodput", "preflight", "standby", "train")
_PROGRAMS = {
    "bash": "/bin/bash",
    "python": "/opt/tpu/venv/bin/python",
    "python3": "/opt/tpu/venv/bin/python3",
    "sh": "/bin/sh",
}
_PATH = re.compile(r"\.?/[A-Za-z0-9._+/-]+")
_MAX_CHARACTERS = 500
# These say themselves how far they are; of all others a service of its own does (heartbeat.py).
_SAY_THEMSELVES = ("extract", "standby", "train")

# A job that fails is started again after so long, and so often within a time.
AGAIN_S, MOST_STARTS, WITHIN_S = 5, 20, 3600

# Preemption gives 30 s of notice; two are left for the machine to unmount.
STOP_TIMEOUT_S = 28

# Holds the invocation of the job that somebody, or the end of the machine, stopped.
STOPPED = PurePosixPath("/var/lib/tpu/job/stopped")

# systemd makes its folder for the job's user, and anew at every start.
_PLACE = PurePosixPath("/run/tpu-job/environment")

_UNIT = """\
[Unit]
Description=TPU job: {program}
Wants=network-online.target tpu-checkpoints.service{heartbeat}
After=network-online.target tpu-checkpoints.service
StartLimitIntervalSec={within_s}
StartLimitBurst={most_starts}

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
{barrier}ExecStart={command}
{own}# The trainer saves on SIGTERM; its children get theirs from it, or SIGKILL at the end.
KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec={stop_timeout_s}
Restart=on-failure
RestartSec={again_s}
# 2 is what the workload says of settings that can't work: starting again changes nothing.
RestartPreventExitStatus=2
# JAX aborts where a peer is lost; the dump of a host's memory would fill its disk.
LimitCORE=0
# libtpu locks the memory that the chips read.
LimitMEMLOCK=infinity
LimitNOFILE=1048576
"""

_BARRIER = f"""\
# The barrier bounds its own wait and says who is missing.
TimeoutStartSec=infinity
ExecStartPre=/opt/tpu/venv/bin/python -m workload.host barrier --phase job --environment {_PLACE}
"""

# Of a program that isn't the workload's.
_OWN = f"""\
# What it prints is seen when it prints it.
Environment=PYTHONUNBUFFERED=1
# Tells a job that was stopped from one that is done: $MAINPID is there as long as it runs.
ExecStop=-/bin/sh -c '[ -z "$$MAINPID" ] || echo "$$INVOCATION_ID" >{STOPPED}'
"""

_HEARTBEAT = """\
[Unit]
Description=Heartbeat of the TPU job
# Begins once the job is past its barrier, and ends before it: what a host that goes away stops isn't done.
After=network-online.target tpu-job.service
PartOf=tpu-job.service

[Service]
# root, whom systemd answers without D-Bus, which refuses users that no file names; and nothing that root may.
CapabilityBoundingSet=
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
SupplementaryGroups=systemd-journal
EnvironmentFile=/etc/tpu/environment
Environment=TPU_COMMAND={id}
ExecStart=/opt/tpu/venv/bin/python -m workload.host heartbeat
TimeoutStopSec=5
Restart=always
RestartSec=5
"""

_LOGS = """\
[Unit]
Description=Logs of boot and job to Cloud Logging
Wants=network-online.target
# Ends after them, with their last lines.
After=network-online.target
Before=google-startup-scripts.service tpu-job.service
StartLimitIntervalSec=0

[Service]
DynamicUser=yes
SupplementaryGroups=systemd-journal
StateDirectory=tpu-logs
ExecStart=/opt/tpu/venv/bin/python -m workload.host logs --cursor /var/lib/tpu-logs/cursor
KillMode=mixed
TimeoutStopSec=10
Restart=always
RestartSec=5
MemoryMax=256M

[Install]
WantedBy=multi-user.target
"""


def job_unit(run: str) -> str:
    """Return the text of `tpu-job.service` for `run`, e.g. `train tiny.toml` or `python train.py`.

    The first word is a subcommand of the workload, an interpreter, or the path of a program, where
    `./` is /opt/training. Raises `RunError` where it is none, or where a word can't stand in a unit.
    """
    program, *arguments = words(run)
    if program in COMMANDS:
        command = ["/opt/tpu/venv/bin/workload", _quoted(program)]
    elif program in _PROGRAMS:
        command = [_PROGRAMS[program]]
    elif _PATH.fullmatch(program) and ".." not in program.split("/"):
        command = [f"/opt/training{program[1:]}" if program.startswith(".") else program]
    else:
        raise RunError(
            f"tpu:slices run: starts with {program!r}: start it with a subcommand of the workload "
            f"({', '.join(COMMANDS)}), with {', '.join(_PROGRAMS)}, or with a program's path "
            "(./… is of tpu:code)"
        )
    command += [_quoted(word) for word in arguments]
    return _UNIT.format(
        program=program,
        id=command_id(run),
        place=_PLACE,
        command=" ".join(command),
        barrier="" if program == "standby" else _BARRIER,  # its hosts meet before each run
        own="" if program in _SAY_THEMSELVES else _OWN,
        heartbeat="" if program in _SAY_THEMSELVES else " tpu-heartbeat.service",
        stop_timeout_s=STOP_TIMEOUT_S,
        again_s=AGAIN_S,
        most_starts=MOST_STARTS,
        within_s=WITHIN_S,
    )


def heartbeat_unit(run: str) -> str:
    """Return the text of `tpu-heartbeat.service` for `run`; empty for what says itself how far it is."""
    if words(run)[0] in _SAY_THEMSELVES:
        return ""
    return _HEARTBEAT.format(id=command_id(run))


def logs_unit() -> str:
    """Return the text of `tpu-logs.service`."""
    return _LOGS


def words(run: str) -> list[str]:
    """The words of a command, as its program gets them. Raises RunError where a unit can't hold them."""
    run = run.strip()
    if len(run) > _MAX_CHARACTERS:
        raise RunError(f"tpu:slices run: has {len(run)} characters: {_MAX_CHARACTERS} at most")
    if not run.isprintable():
        raise RunError(f"tpu:slices run: {run!r} holds a control character: write it without line breaks")
    try:
        found = shlex.split(run)
    except ValueError as error:
        raise RunError(
            f"tpu:slices run: {run!r} can't be split into words ({error}): close the quote"
        ) from error
    if not found:
        raise RunError("tpu:slices run: is empty: name what to run, or leave it out")
    return found


def command_id(run: str) -> str:
    """What tells one command from another in a worker's word (docs/architecture.md)."""
    return sha256(run.strip().encode()).hexdigest()[:12]


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
