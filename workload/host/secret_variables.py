"""Secrets in the environment of a program: read where it starts, given to it alone.

`$TPU_SECRETS` names them, NAME@VERSION:VARIABLE each; it comes from the slice's metadata, the pod or the job
of Slurm. The account of this host, or of the pod, must be allowed to read them.

https://cloud.google.com/secret-manager/docs/reference/rest/v1/projects.secrets.versions/access
"""

from __future__ import annotations

import base64
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence

from workload.arguments import program
from workload.errors import WorkloadError
from workload.host.errors import HostError
from workload.host.metadata import access_token, read

VARIABLE = "TPU_SECRETS"
_API = "https://secretmanager.googleapis.com/v1"
_REFERENCE = re.compile(r"([\w-]+)@(latest|\d+):(\w+)", re.ASCII)
_TIMEOUT_S = 20.0
# Grants of a new account, and a pod's metadata server, take a while.
_PATIENCE_S, _PAUSE_S = 120.0, 2.0
_FINAL = (400, 404)


class SecretError(WorkloadError):
    """A secret can't be read; its value is in no message."""


class HopelessSecretError(SecretError):
    """Another start would fail as well."""

    exit_code = 2


def main(arguments: Sequence[str]) -> int:
    """Become a program that has the secrets in its environment. Raises WorkloadError."""
    about = f"Start a program with the secrets in its environment that ${VARIABLE} names."
    line = program("workload secrets", about, "  workload secrets -- python x.py", arguments)
    os.execvpe(line[0], line, resolved(os.environ))


def resolved(environment: Mapping[str, str], patience_s: float = _PATIENCE_S) -> dict[str, str]:
    """Return an environment with values in place of the references. Raises SecretError."""
    kept = {name: value for name, value in environment.items() if name != VARIABLE}
    references = environment.get(VARIABLE, "").split()
    end = time.monotonic() + patience_s
    return kept | dict(_variable(text, end) for text in references)


def _variable(text: str, end: float) -> tuple[str, str]:
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise HopelessSecretError(f"${VARIABLE}: {text[:80]!a} isn't NAME@VERSION:VARIABLE")
    name, version, variable = match.groups()
    try:
        value = _patient(name, version, end).decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        value = "\0"
    if not value or "\0" in value:
        fix = f"printf %s VALUE | gcloud secrets versions add {name} --data-file=-"
        raise HopelessSecretError(f"the secret {name}@{version} holds no text for {variable}\n    fix: {fix}")
    return variable, value


def _patient(name: str, version: str, end: float) -> bytes:
    """Return the value of a version; repeat what may pass until `end`, on a monotonic clock."""
    while True:
        try:
            project = read("project/project-id") or ""
            return access(f"projects/{project}/secrets/{name}/versions/{version}")
        except urllib.error.HTTPError as error:
            why, final = _reason(error, name), error.code in _FINAL
        except (HostError, OSError, ValueError, KeyError) as error:
            why, final = f"{type(error).__name__}: {error}", False
        if final:
            raise HopelessSecretError(f"the secret {name}@{version} can't be read: {why}")
        if time.monotonic() + _PAUSE_S > end:
            raise SecretError(f"the secret {name}@{version} can't be read: {why}")
        time.sleep(_PAUSE_S)


def _reason(error: urllib.error.HTTPError, name: str) -> str:
    listed = f"no value of that version\n    fix: gcloud secrets versions list {name}"
    granted = (
        f"storage:secrets: [{name}], then tpu up ENV storage; of a pod secrets: [{name}] of its team in "
        "queue:teams, then tpu up ENV queue"
    )
    words = {403: f"this account may not\n    fix: {granted}", 404: listed, 400: listed}
    return f"HTTP {error.code}: {words.get(error.code, error.reason)}"


def access(version: str) -> bytes:
    """Return the value of a version by its full name.

    Raises:
        HTTPError: Secret Manager refuses.
        HostError, OSError, ValueError, KeyError: it, or the metadata server, gives no answer.
    """
    request = urllib.request.Request(
        f"{_API}/{version}:access", headers={"Authorization": f"Bearer {access_token()}"}
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
        return base64.b64decode(json.load(reply)["payload"]["data"], validate=True)
