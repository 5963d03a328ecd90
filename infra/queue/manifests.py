"""The released manifests of JobSet and Kueue, with images by digest.

tools/install.sh renders them with kustomize from the modules that tools/queue/go.mod names, and refuses
others than tools/queue/manifests.sha256 has. Their images are a test registry's, so the settings' stand in.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import yaml

from infra.errors import InfraError
from infra.queue.kueue import Object
from infra.settings.sources import ROOT

_FIRST = ("CustomResourceDefinition", "Namespace")


@cache
def _folder() -> Path:
    line = [str(ROOT / "tools" / "install.sh"), "--cached", "queue"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InfraError(
            "the manifests of JobSet and Kueue aren't here yet\n"
            "    fix: tools/setup.sh kubernetes (about 10 minutes, once)"
        )
    return Path(done.stdout.strip())


@cache
def _documents(name: str) -> Sequence[Object]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return tuple(one for one in yaml.load_all((_folder() / f"{name}.yaml").read_text(), loader) if one)


def objects(name: str, image: str) -> tuple[list[Object], list[Object]]:
    """The manifests of `jobset` or `kueue`: those that the others need, and the others.

    Raises:
        InfraError: they aren't rendered yet.
    """
    found = [_with_image(one, image) for one in _documents(name)]
    first = [one for one in found if one["kind"] in _FIRST]
    return first, [one for one in found if one["kind"] not in _FIRST]


def _with_image(one: Object, image: str) -> Object:
    if one["kind"] != "Deployment":
        return one
    spec = one["spec"]
    pod = spec["template"]["spec"]
    containers = [{**each, "image": image, "imagePullPolicy": "IfNotPresent"} for each in pod["containers"]]
    return {
        **one,
        "spec": {**spec, "template": {**spec["template"], "spec": {**pod, "containers": containers}}},
    }
