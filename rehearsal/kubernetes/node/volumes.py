"""Files of a pod's volumes, and environment of its containers.

https://kubernetes.io/docs/concepts/storage/volumes/
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rehearsal.kubernetes.errors import KubernetesError
from rehearsal.kubernetes.node.surroundings import ALONE, Surroundings, mount_bucket, mount_disk, unmount
from rehearsal.kubernetes.plane.api import Api, Object

_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
_REFERENCE = re.compile(r"\$(?:\(([A-Za-z_]\w*)\)|\$)")
_DISK = "pd.csi.storage.gke.io"
_GCSFUSE, _ASKS_FOR_IT = "gcsfuse.csi.storage.gke.io", "gke-gcsfuse/volumes"
_READ_ONLY, _WRITABLE = 0o644, 0o777


class Volumes:
    """The volumes of one pod, each a folder."""

    def __init__(self, api: Api, pod: Object, folder: Path, network: str, around: Surroundings = ALONE):
        """Write the files. Raises KubernetesError for a kind that isn't emulated, or a missing object.

        `network`: the name of the pod's network namespace.
        """
        self._api, self._pod, self.folder, self._network = api, pod, folder, network
        self._namespace, self._around = pod["metadata"]["namespace"], around
        self._of_host: dict[str, Path] = {}
        for volume in pod["spec"].get("volumes", ()):
            self._write(volume)

    def mounts(self, container: Object) -> Iterator[tuple[Path, str, bool]]:
        """(file or folder, place in the container, read-only?)"""
        for mount in container.get("volumeMounts", ()):
            source = self._of_host.get(mount["name"], self.folder / mount["name"])
            yield (
                source / mount["subPath"] if "subPath" in mount else source,
                mount["mountPath"],
                mount.get("readOnly", False),
            )

    def refresh(self) -> None:
        """Write secrets again, which may have changed since."""
        for volume in self._pod["spec"].get("volumes", ()):
            if "secret" in volume:
                self._write(volume)

    def close(self) -> None:
        """Take mounts away."""
        for volume in self._pod["spec"].get("volumes", ()):
            unmount(self.folder / volume["name"])

    def _write(self, volume: Object) -> None:
        place = self.folder / volume["name"]
        place.mkdir(parents=True, exist_ok=True)
        kind = next(key for key in volume if key != "name")
        if kind == "hostPath":
            self._of_host[volume["name"]] = Path(volume[kind]["path"])
            return
        if kind == "csi":
            self._mount(volume[kind], place)
            return
        if kind == "persistentVolumeClaim":
            self._claim(volume[kind], place)
            return
        if kind == "emptyDir":
            place.chmod(_WRITABLE)
            return
        sources = volume[kind].get("sources", []) if kind == "projected" else [{kind: volume[kind]}]
        for source in sources:
            for name, content in self._files(*next(iter(source.items()))).items():
                _put(place / name, content)

    def _claim(self, source: Object, place: Path) -> None:
        """Return the volume bound to a claim, as its CSI driver mounts it."""
        name = source["claimName"]
        claim = self._api.get("v1", "PersistentVolumeClaim", name, self._namespace)
        if claim is None or claim.get("status", {}).get("phase") != "Bound":
            raise KubernetesError(f"the claim {name} of {self._namespace} isn't bound")
        volume = self._api.get("v1", "PersistentVolume", claim["spec"]["volumeName"])
        if volume is None or "csi" not in volume["spec"]:
            raise KubernetesError(f"the volume of the claim {name} is no CSI driver's")
        csi = volume["spec"]["csi"]
        read_only = source.get("readOnly", False) or csi.get("readOnly", False)
        options = volume["spec"].get("mountOptions", ())
        if csi["driver"] == _DISK:
            mount_disk(self._around.disk(csi["volumeHandle"]), place, options)
            return
        attributes = {"bucketName": csi["volumeHandle"], "mountOptions": ",".join(options)}
        self._mount({**csi, "readOnly": read_only, "volumeAttributes": attributes}, place)

    def _mount(self, source: Object, place: Path) -> None:
        if source["driver"] != _GCSFUSE:
            raise KubernetesError(f"the CSI driver {source['driver']} isn't emulated")
        if (self._pod["metadata"].get("annotations") or {}).get(_ASKS_FOR_IT) != "true":
            raise KubernetesError(
                f'a pod with a volume of {_GCSFUSE} needs the annotation {_ASKS_FOR_IT}: "true"'
            )
        mount_bucket(self._network, source["volumeAttributes"], place, source.get("readOnly", False))

    def _files(self, kind: str, source: Object) -> dict[str, bytes]:
        if kind == "serviceAccountToken":
            return {source["path"]: self._token(source)}
        if kind == "downwardAPI":
            return {
                item["path"]: self.field(item["fieldRef"]["fieldPath"]).encode() for item in source["items"]
            }
        if kind not in ("configMap", "secret"):
            raise KubernetesError(f"a volume of the kind {kind} isn't emulated")
        name = source.get("name") or source["secretName"]
        files = self._api.get("v1", kind[0].upper() + kind[1:], name, self._namespace)
        if files is None:
            raise KubernetesError(f"{kind} {name} of {self._namespace} isn't there yet")
        data = {key: text.encode() for key, text in (files.get("data") or {}).items()}
        if kind == "secret":
            data = {key: base64.b64decode(text) for key, text in data.items()}
        if items := source.get("items"):
            return {item["path"]: data[item["key"]] for item in items}
        return data

    def _token(self, source: Object) -> bytes:
        spec = self._pod["spec"]
        path = self._api.place(
            "v1", "ServiceAccount", self._namespace, spec.get("serviceAccountName", "default")
        )
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [source["audience"]] if "audience" in source else None,
                "expirationSeconds": 8 * 3600,
            },
        }
        token: str = self._api.request("POST", f"{path}/token", body)["status"]["token"]
        return token.encode()

    # Environment

    def environment(self, container: Object) -> dict[str, str]:
        """Return a container's variables, with `$(NAME)` of earlier ones filled in."""
        variables: dict[str, str] = {}
        for entry in container.get("env", ()):
            text = entry.get("value", "") if "valueFrom" not in entry else self._value(entry["valueFrom"])
            variables[entry["name"]] = expanded(text, variables)
        return variables

    def _value(self, source: Object) -> str:
        if "fieldRef" in source:
            return self.field(source["fieldRef"]["fieldPath"])
        for kind, key in (("configMapKeyRef", "configMap"), ("secretKeyRef", "secret")):
            if kind in source:
                return self._files(key, {"name": source[kind]["name"]})[source[kind]["key"]].decode()
        raise KubernetesError(f"an environment variable from {', '.join(source)} isn't emulated")

    def field(self, path: str) -> str:
        """Return a field of the pod, as in the downward API."""
        if keyed := _KEYED.fullmatch(path):
            return str((self._pod["metadata"].get(keyed[1]) or {}).get(keyed[2], ""))
        value: Any = self._pod
        for part in path.split("."):
            value = value.get(part, {}) if isinstance(value, Mapping) else {}
        return value if isinstance(value, str) else ""


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """`text` with `$(NAME)` replaced where NAME is known, and `$$` by `$`."""
    return _REFERENCE.sub(
        lambda value: "$" if value[1] is None else environment.get(value[1], value[0]), text
    )


def _put(path: Path, content: bytes) -> None:
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.part")
    scratch.write_bytes(content)
    scratch.chmod(_READ_ONLY)
    scratch.rename(path)
