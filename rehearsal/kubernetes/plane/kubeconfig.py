"""A connection from a kubeconfig, as client-go makes one.

https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/ and, for the credentials of a program,
https://kubernetes.io/docs/reference/config-api/client-authentication.v1beta1/
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import requests
import yaml
from requests.auth import AuthBase

from rehearsal.authority import Pair
from rehearsal.kubernetes.errors import KubernetesError
from rehearsal.kubernetes.plane.api import Api

_CLUSTER = {"server", "certificate-authority", "certificate-authority-data"}
_USER = {"client-certificate", "client-certificate-data", "client-key", "client-key-data", "token", "exec"}
_EXEC_TIMEOUT_S = 60.0


def load(path_or_contents: str) -> dict[str, Any]:
    """Return the document; KubernetesError if it is none."""
    try:
        text = Path(path_or_contents).expanduser().read_text()
    except (OSError, ValueError):  # no such file, or not even a path
        text = path_or_contents
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise KubernetesError(f"the kubeconfig is no YAML: {error}") from error
    if not isinstance(document, dict):
        raise KubernetesError("the kubeconfig is neither a file nor the contents of one")
    return document


def choose(config: Mapping[str, Any], context: str = "", cluster: str = "") -> dict[str, Any]:
    """Return the chosen context with its `cluster` and `user` in place of their names."""
    name = context or config.get("current-context", "")
    chosen = _named(config, "context", name)
    names = {"cluster": cluster or chosen.get("cluster", ""), "user": chosen.get("user", "")}
    return {**chosen, **{what: _named(config, what, entry) for what, entry in names.items()}}


def connect(chosen: Mapping[str, Any]) -> Api:
    """Return a connection for `choose`'s context; KubernetesError for an unsupported login."""
    cluster, user = chosen["cluster"], chosen["user"]
    unknown = sorted(({*cluster} - _CLUSTER) | ({*user} - _USER))
    if unknown or not cluster.get("server"):
        what = f"has what isn't known here: {', '.join(unknown)}" if unknown else "names no server"
        raise KubernetesError(f"the kubeconfig {what}")
    ca = _file(cluster, "certificate-authority") or os.environ.get("REQUESTS_CA_BUNDLE") or True
    certificate, key = _file(user, "client-certificate"), _file(user, "client-key")
    return Api(
        cluster["server"].rstrip("/"),
        ca,
        Pair(Path(certificate), Path(key)) if certificate else None,
        user.get("token", ""),
        Exec(user["exec"], cluster) if "exec" in user else None,
    )


class Exec(AuthBase):
    """Bearer tokens of a program, which runs if there is none yet, or it has expired or was refused."""

    def __init__(self, spec: Mapping[str, Any], cluster: Mapping[str, Any]):
        self._spec, self._cluster = spec, cluster
        self._lock = threading.Lock()
        self._token, self._expires = "", datetime.max.replace(tzinfo=UTC)

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add a token to the request. As with client-go, a refused request fails, and the next has a new
        token.
        """
        with self._lock:
            if not self._token or datetime.now(UTC) >= self._expires:
                self._renew()
            token = self._token
        request.headers["Authorization"] = f"Bearer {token}"
        request.register_hook("response", self._answered)  # type: ignore[no-untyped-call]
        return request

    def _answered(self, answer: requests.Response, **_: Any) -> None:
        refused = answer.request.headers.get("Authorization") == f"Bearer {self._token}"
        if answer.status_code == requests.codes.unauthorized and refused:
            self._token = ""

    def _renew(self) -> None:
        spec: dict[str, Any] = {"interactive": False}
        if self._spec.get("provideClusterInfo"):
            spec["cluster"] = {key: self._cluster[key] for key in _CLUSTER if key in self._cluster}
        info = {"apiVersion": self._spec["apiVersion"], "kind": "ExecCredential", "spec": spec}
        more = {response["name"]: response["value"] for response in self._spec.get("env") or ()}
        environment = {**os.environ, **more, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        command = [self._spec["command"], *(self._spec.get("args") or ())]
        try:
            done = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                check=True, timeout=_EXEC_TIMEOUT_S,
            )  # fmt: skip
            status = json.loads(done.stdout)["status"]
            self._token = status["token"]
        except subprocess.CalledProcessError as error:
            raise KubernetesError(
                f"getting credentials: {command[0]} failed with exit code {error.returncode}:"
                f" {error.stderr.strip()[-600:]}"
            ) from error
        except (OSError, subprocess.TimeoutExpired) as error:
            hint = str(self._spec.get("installHint", ""))
            raise KubernetesError(f"getting credentials: {command[0]}: {error}", hint) from error
        except (ValueError, KeyError, TypeError) as error:
            raise KubernetesError(f"getting credentials: {command[0]} printed no token") from error
        until = status.get("expirationTimestamp")
        self._expires = datetime.fromisoformat(until) if until else datetime.max.replace(tzinfo=UTC)


def _named(config: Mapping[str, Any], what: str, name: str) -> dict[str, Any]:
    for entry in config.get(f"{what}s") or ():
        if entry["name"] == name:
            return dict(entry.get(what) or {})
    raise KubernetesError(f"the kubeconfig has no {what} {name!r}")


def _file(holder: Mapping[str, Any], key: str) -> str:
    """Return the file that a key names, or one with the base64 in KEY-data; empty without either."""
    if not (data := holder.get(f"{key}-data")):
        return str(holder.get(key, ""))
    with tempfile.NamedTemporaryFile(
        prefix="kubeconfig-", delete=False
    ) as file:  # readable by its owner only
        file.write(base64.b64decode(data))
    atexit.register(Path(file.name).unlink, missing_ok=True)
    return file.name
