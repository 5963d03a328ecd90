"""systemd units of a host: a slice's `run` as a job, its heartbeat, the host's logs.

The arguments of `run` reach the program unchanged: no shell, systemd specifier or variable
is expanded (systemd.service(5), "COMMAND LINES").
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from hashlib import sha256
from pathlib import PurePosixPath
from types import MappingProxyType

from workload.host import container, secret_variables
from workload.host.errors import RunError

# As in infra/settings/commands.py, which refuses other commands before a slice is created.
COMMANDS = ("activations", "checkpoints", "data", "extract", "goodput", "preflight", "train")
# Command of the host itself, which runs as root: the Slurm layer's slices have it.
HOST_COMMAND = "slurmd"
_PROGRAMS = {
    "bash": "/bin/bash",
    "python": "/opt/tpu/venv/bin/python",
    "python3": "/opt/tpu/venv/bin/python3",
    "sh": "/bin/sh",
}
_PATH = re.compile(r"\.?/[A-Za-z0-9._+/-]+")
_MAX_CHARACTERS = 2000
NOTHING: Mapping[str, str] = MappingProxyType({})
# Commands that write heartbeats themselves; for others tpu-heartbeat.service does.
_OWN_HEARTBEAT = ("extract", "train")

# Restarts of a failed job: pause in seconds, and their number within a time.
AGAIN_S, MOST_STARTS, WITHIN_S = 5, 20, 3600

# Preemption gives 30 s of notice; two are for unmounting.
STOP_TIMEOUT_S = 28

# Invocation of the job that systemctl or a shutdown stopped last.
STOPPED = PurePosixPath("/var/lib/tpu/job/stopped")

# systemd creates its folder for the job's user, anew at every start.
_PLACE = PurePosixPath("/run/tpu-job/environment")

_UNIT = """\
[Unit]
Description=TPU job: {program}
Wants=network-online.target tpu-checkpoints.service{docker}{heartbeat}
After=network-online.target tpu-checkpoints.service{docker}
StartLimitIntervalSec={within_s}
StartLimitBurst={most_starts}

[Service]
Type=exec
User={user}
Group={user}
StateDirectory=tpu/job
WorkingDirectory=/opt/training
Environment=HOME=/var/lib/tpu/job
EnvironmentFile=/etc/tpu/environment
Environment=TPU_COMMAND={id}
{variables}# Written by the barrier for a job of several slices; overrides the file above.
RuntimeDirectory={place.parent.name}
EnvironmentFile=-{place}
{barrier}ExecStart={command}
{own}# The trainer saves on SIGTERM and ends its children; SIGKILL follows.
KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec={stop_timeout_s}
Restart=on-failure
RestartSec={again_s}
# 2: the workload's settings are invalid; a restart changes nothing.
RestartPreventExitStatus=2{hopeless}
# JAX aborts when a peer is lost; a core dump would fill the disk.
LimitCORE=0
# libtpu locks memory for the chips.
LimitMEMLOCK=infinity
LimitNOFILE=1048576
"""

_BARRIER = f"""\
# The barrier has its own timeout and names the missing workers.
TimeoutStartSec=infinity
ExecStartPre=/opt/tpu/venv/bin/python -m workload.host barrier --phase job --environment {_PLACE}
"""

# For programs other than the workload.
_OWN = f"""\
# Show output at once.
Environment=PYTHONUNBUFFERED=1
# Mark a stopped job, unlike one that is done: $MAINPID is set while it runs.
ExecStop=-/bin/sh -c '[ -z "$$MAINPID" ] || echo "$$INVOCATION_ID" >{STOPPED}'
"""

# For a program in a container, which systemd can't kill: it is none of the unit's processes.
_CONTAINER = f"""\
ExecStopPost=-docker rm --force {container.NAME}
# Of a program that SIGTERM ended: no failure.
SuccessExitStatus=143
"""
# 126 and 127: the image lacks the program (https://docs.docker.com/engine/containers/run/#exit-status).
_NO_PROGRAM = " 126 127"

_HEARTBEAT = """\
[Unit]
Description=Heartbeat of the TPU job
# Begins after the job's barrier and ends before the job: a job stopped by a shutdown isn't done.
After=network-online.target tpu-job.service
PartOf=tpu-job.service

[Service]
# root, since systemd answers root without D-Bus, which refuses unnamed users; but without privileges.
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

LOGS, CURSOR = "tpu-logs.service", "/var/lib/tpu-logs/cursor"
_LOGS = """\
[Unit]
Description=Logs of boot and job to Cloud Logging
Wants=network-online.target
# Ends after them, to send their last lines.
After=network-online.target
Before=google-startup-scripts.service tpu-job.service
StartLimitIntervalSec=0

[Service]
DynamicUser=yes
SupplementaryGroups=systemd-journal
StateDirectory=tpu-logs
WorkingDirectory={folder}
ExecStart=/opt/tpu/venv/bin/python -m {command}
KillMode=mixed
TimeoutStopSec=10
Restart=always
RestartSec=5
MemoryMax=256M

[Install]
WantedBy=multi-user.target
"""


def job_unit(run: str, variables: Mapping[str, str] = NOTHING, image: str = "") -> str:
    """Return the text of `tpu-job.service` for `run`, e.g. `train tiny.toml` or `python train.py`.

    The first word is a subcommand of the workload, an interpreter, or the path of a program, where
    `./` is /opt/training. `variables`: of its environment, where `TPU_SECRETS` names secrets. `image`: of
    the container that it starts in; empty: on the host.
    Raises `RunError` for any other program, or for a word that a unit can't hold.
    """
    program, *arguments = words(run)
    if program in COMMANDS and not image:
        command = ["/opt/tpu/venv/bin/workload", _quoted(program)]
    elif program == HOST_COMMAND and not image:
        command = ["/opt/tpu/venv/bin/python -m workload.host", program]
    elif program in _PROGRAMS:
        command = [program if image else _PROGRAMS[program]]
    elif _PATH.fullmatch(program) and ".." not in program.split("/"):
        command = [f"/opt/training{program[1:]}" if program.startswith(".") else program]
    else:
        raise RunError(
            f"tpu:slices run: starts with {program!r}: begin with a subcommand of the workload "
            f"({', '.join(COMMANDS)}), {', '.join(_PROGRAMS)}, or the path of a program "
            "(./… is in tpu:code)"
        )
    if image:
        command.insert(0, f"/opt/tpu/venv/bin/python -m workload.host container {_quoted(image)}")
    command += [_quoted(word) for word in arguments]
    if secret_variables.VARIABLE in variables:
        command = ["/opt/tpu/venv/bin/workload secrets --", *command]
    return _UNIT.format(
        program=program,
        user="root" if image or program == HOST_COMMAND else "tpu",
        docker=" docker.service" if image else "",
        hopeless=_NO_PROGRAM if image else "",
        id=command_id(run),
        place=_PLACE,
        command=" ".join(command),
        variables="".join(f"Environment={_escaped(f'{key}={value}')}\n" for key, value in variables.items()),
        # A host that comes back joins alone: its slice's others never left.
        barrier="" if program == HOST_COMMAND else _BARRIER,
        own="" if program in _OWN_HEARTBEAT else _OWN + (_CONTAINER if image else ""),
        heartbeat="" if program in _OWN_HEARTBEAT else " tpu-heartbeat.service",
        stop_timeout_s=STOP_TIMEOUT_S,
        again_s=AGAIN_S,
        most_starts=MOST_STARTS,
        within_s=WITHIN_S,
    )


def heartbeat_unit(run: str) -> str:
    """Return the text of `tpu-heartbeat.service` for `run`; empty if the command writes its own heartbeat."""
    if words(run)[0] in _OWN_HEARTBEAT:
        return ""
    return _HEARTBEAT.format(id=command_id(run))


def logs_unit(command: str = f"workload.host logs --cursor {CURSOR}", folder: str = "/") -> str:
    """Return the text of `tpu-logs.service`: a module with its arguments, run in a folder."""
    return _LOGS.format(command=command, folder=folder)


def words(run: str) -> list[str]:
    """Split a command into its arguments. Raises RunError if a unit can't hold it."""
    run = run.strip()
    if len(run) > _MAX_CHARACTERS:
        raise RunError(f"tpu:slices run: has {len(run)} characters: {_MAX_CHARACTERS} at most")
    if not run.isprintable():
        raise RunError(f"tpu:slices run: {run!r} holds a control character: write it without line breaks")
    try:
        arguments = shlex.split(run)
    except ValueError as error:
        raise RunError(
            f"tpu:slices run: {run!r} can't be split into words ({error}): close the quote"
        ) from error
    if not arguments:
        raise RunError("tpu:slices run: is empty: name what to run, or leave it out")
    return arguments


def command_id(run: str) -> str:
    """Return a digest of the command, for the worker's heartbeat (docs/internals/architecture.md)."""
    return sha256(run.strip().encode()).hexdigest()[:12]


def _quoted(word: str) -> str:
    return _escaped(word.replace("$", "$$"))


def _escaped(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
