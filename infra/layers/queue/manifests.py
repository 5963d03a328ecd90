"""The released manifests of JobSet and Kueue, with images by digest.

tools/setup.sh manifests renders them with kustomize from the modules that tools/queue/go.mod names; builds
(infra/layers/builds) take them along. Other hashes than those in tools/queue/manifests.sha256 are refused.
Their images are a test registry's, so the settings' replace them.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from infra.errors import InfraError
from infra.layers.queue.kueue import Object
from infra.settings.sources import INSTALLED, ROOT, part

_KINDS = "CustomResourceDefinition"
# Their kinds must be there: what serves them, and who is asked about each object.
_LAST = ("Deployment", "APIService", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


# From 0.19 on, a job whose pods aren't ready after 30 minutes is evicted and queued again, unless this says
# another time; no field switches it off. Jobs on flex-start pools wait for their nodes for hours or days.
# https://kueue.sigs.k8s.io/docs/tasks/manage/setup_wait_for_pods_ready/
_WAIT = """waitForPodsReady:
  timeout: 8760h
  recoveryTimeout: 0s
"""
# https://kueue.sigs.k8s.io/docs/concepts/preemption/#fair-sharing
# Kueue's default has LessThanInitialShare besides, by which jobs of several sizes may preempt one another
# without end: https://github.com/kubernetes-sigs/kueue/issues/14543
_FAIR = """fairSharing:
  preemptionStrategies: [LessThanOrEqualToFinalShare]
"""
FOLDER_VARIABLE = "TPU_QUEUE_MANIFESTS"
"""The folder that they are in, where tools/install.sh has none: in a build, relative to the checkout."""
HASHES = "tools/queue/manifests.sha256"
_INSTALL = part("tools/install.sh")
_RENDER = f"{_INSTALL} manifests" if INSTALLED else "tools/setup.sh manifests"


def files() -> dict[str, bytes]:
    """Every rendered file, by its name.

    Raises:
        InfraError: they aren't rendered yet, or are of other versions.
    """
    folder, fix = _folder()
    contents = {}
    for line in part(HASHES).read_text(encoding="utf-8").splitlines():
        expected, name = line.split()
        try:
            contents[name] = (folder / name).read_bytes()
        except OSError:
            contents[name] = b""
        if hashlib.sha256(contents[name]).hexdigest() != expected:
            raise InfraError(
                f"{name} isn't what {HASHES} has: the manifests of JobSet and Kueue are of other versions\n"
                f"    fix: {fix}"
            )
    return contents


def _folder() -> tuple[Path, str]:
    """Return the folder of the manifests and the command that renders them."""
    if given := os.environ.get(FOLDER_VARIABLE):
        return ROOT / given, "tpu builds render ENV, and start the build again"
    folder = _installed()
    return folder, f"remove {folder}, then {_RENDER}"


@cache
def _installed() -> Path:
    line = [str(_INSTALL), "--cached", "manifests"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InfraError(
            "the manifests of JobSet and Kueue aren't here yet\n"
            f"    fix: {_RENDER} (about half a minute, once)"
        )
    return Path(done.stdout.strip())


@cache
def _documents(name: str) -> Sequence[Object]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return tuple(document for document in yaml.load_all(files()[f"{name}.yaml"], loader) if document)


def stages(name: str, image: str, fair_sharing: bool = False) -> tuple[list[Object], ...]:
    """Return the manifests of `jobset` or `kueue`, in four stages, each of which needs those before it.

    The namespace; roles, settings and services; the kinds; what runs. The kinds are 2 MB of the state, which
    Pulumi writes again after each object, so they come as late as they can. `fair_sharing`: of what queues of
    a cohort borrow.

    Raises:
        InfraError: they aren't rendered yet.
    """
    ordered: tuple[list[Object], ...] = ([], [], [], [])
    for document in _documents(name):
        kind = document["kind"]
        stage = 0 if kind == "Namespace" else 2 if kind == _KINDS else 3 if kind in _LAST else 1
        changed = (
            _bare(document)
            if kind == _KINDS
            else _with_setting(_with_image(document, image), _WAIT + _FAIR * fair_sharing)
        )
        ordered[stage].append(changed)
    return ordered


def _with_setting(document: Object, added: str) -> Object:
    """Return Kueue's settings with `added` at their end; other objects as they are."""
    if (document["kind"], document["metadata"]["name"]) != ("ConfigMap", "kueue-manager-config"):
        return document
    return {**document, "data": {key: f"{text}{added}" for key, text in document["data"].items()}}


def _bare(schema: Any) -> Any:
    """Return a schema without its descriptions, three quarters of it: only `kubectl explain` shows them."""
    if isinstance(schema, list):
        return [_bare(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _bare(value) for key, value in schema.items() if not _is_description(key, value)}


def _is_description(key: str, value: Any) -> bool:
    return key == "description" and isinstance(value, str)  # a property of that name has a schema


def _with_image(document: Object, image: str) -> Object:
    if document["kind"] != "Deployment":
        return document
    spec = document["spec"]
    pod = spec["template"]["spec"]
    containers = [
        {**container, "image": image, "imagePullPolicy": "IfNotPresent"} for container in pod["containers"]
    ]
    return {
        **document,
        "spec": {**spec, "template": {**spec["template"], "spec": {**pod, "containers": containers}}},
    }
