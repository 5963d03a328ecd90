"""The provider's settings, of `kubernetes.Provider(...)` or the stack's `kubernetes:` keys."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rehearsal.kubernetes.errors import KubernetesError
from rehearsal.kubernetes.plane import kubeconfig
from rehearsal.kubernetes.plane.api import Api
from rehearsal.providers.plugin.values import UNKNOWN

_CLUSTER = ("kubeconfig", "context", "cluster")
_KNOWN = {
    "deleteUnreachable", *_CLUSTER, "namespace", "clusterIdentifier", "enableServerSideApply",
    # Accepted and without effect here: there are no such warnings.
    "suppressDeprecationWarnings", "suppressHelmHookWarnings", "version", "pluginDownloadURL",
}  # fmt: skip
_APPLY = "enableServerSideApply"


class Settings:
    """Settings, and the cluster that they lead to: `api`, or None and why it is `unreachable`."""

    def __init__(self, given: Mapping[str, Any] | None, environ: Mapping[str, str] = os.environ) -> None:
        """`given`: None before there are settings."""
        flag = (given or {}).get("deleteUnreachable")
        self.delete_unreachable = _true(
            environ.get("PULUMI_K8S_DELETE_UNREACHABLE") if flag is None else flag
        )
        self.namespace = ""
        self.api: Api | None = None
        self.unreachable = "the provider isn't configured yet"
        if given is None or any(given.get(key) is UNKNOWN for key in _CLUSTER):
            return  # least of all to a cluster of the environment's
        try:
            chosen = _chosen(given, environ)
            self.namespace = _text(given, "namespace") or chosen.get("namespace") or "default"
            api = kubeconfig.connect(chosen)
            api.request("GET", "/api")  # unlike /version it needs a valid account
            self.api, self.unreachable = api, ""
        except KubernetesError as error:
            self.unreachable = str(error)


def unknown(given: Mapping[str, Any]) -> list[str]:
    """Names of settings that would have no effect, and so are refused."""
    names = [key for key, value in given.items() if key not in _KNOWN and value is not None]
    off = given.get(_APPLY) is not None and not _true(given[_APPLY])
    return sorted(name for name in names if not name.endswith("__internal")) + [f"{_APPLY}: false"] * off


def replacing(olds: Mapping[str, Any], news: Mapping[str, Any]) -> list[str]:
    """Return the settings whose change may lead to another cluster; `clusterIdentifier` overrides the
    others.
    """
    identifier = olds.get("clusterIdentifier"), news.get("clusterIdentifier")
    if news.get("clusterIdentifier"):
        return ["clusterIdentifier"] if identifier[0] and identifier[0] != identifier[1] else []
    if later := [key for key in _CLUSTER if news.get(key) is UNKNOWN]:
        return later
    try:
        same = _chosen(olds)["cluster"] == _chosen(news)["cluster"]
    except KubernetesError:
        same = True
    return [] if same else [key for key in _CLUSTER if olds.get(key) != news.get(key)]


def _chosen(given: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    text = _text(given, "kubeconfig") or environ.get("KUBECONFIG") or "~/.kube/config"
    try:
        return kubeconfig.choose(kubeconfig.load(text), *(_text(given, key) for key in _CLUSTER[1:]))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise KubernetesError(f"the kubeconfig has another form: {error!r}") from error


def _text(given: Mapping[str, Any], key: str) -> str:
    value = given.get(key)
    return "" if value is None or value is UNKNOWN else str(value)


def _true(value: Any) -> bool:
    return value is True or value == "true"
