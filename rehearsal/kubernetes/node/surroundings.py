"""Pod environment: Google's names and certificates, an identity, bucket mounts."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from rehearsal.kubernetes.errors import KubernetesError
from rehearsal.kubernetes.node.sandbox import Image
from rehearsal.kubernetes.plane.api import Object
from rehearsal.kubernetes.plane.control_plane import DIES_WITH_US

BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
_MOUNT_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Surroundings:
    """`names`: host names with their addresses, which the cluster's DNS answers. `bundle`: the CAs that are
    trusted. `joined` learns of every pod with its address before it starts, `left` of each that has ended.
    `disk`: the file with a disk's content, by its id; empty where there is none. `image`: what was built here
    under an image's name. `pull`: the error of a node's pull of an image, by their names; empty: none.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    bundle: Path | None = None
    joined: Callable[[Object, str], None] = lambda pod, address: None
    left: Callable[[str], None] = lambda address: None
    disk: Callable[[str], str] = lambda id_: ""
    image: Callable[[str], Image | None] = lambda name: None
    pull: Callable[[str, str], str] = lambda node, image: ""

    @property
    def environment(self) -> dict[str, str]:
        """Variables for programs that bring CAs of their own along; a world's authority isn't among those."""
        if self.bundle is None:
            return {}
        return dict.fromkeys(
            ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"), BUNDLE
        )


ALONE = Surroundings()
"""Of pods that run in no world."""


def mount_bucket(namespace: str, volume: Object, place: Path, read_only: bool) -> None:
    """Mount a bucket with gcsfuse in a pod's network, where the metadata server knows it by its address.

    `volume`: the `volumeAttributes` of https://cloud.google.com/kubernetes-engine/docs/how-to/cloud-storage-fuse-csi-driver-ephemeral.
    GKE runs gcsfuse in a container beside the pod's own. Raises KubernetesError where the mount fails.
    """
    if os.path.ismount(place):
        return
    program, log = shutil.which("gcsfuse"), place.with_name(f"{place.name}.log")
    if program is None:
        raise KubernetesError("gcsfuse is not installed", "tools/setup.sh")
    options = [part.strip() for part in volume.get("mountOptions", "").split(",") if part.strip()]
    config = place.with_name(f"{place.name}.yaml")
    config.write_text(yaml.safe_dump(_nested(option for option in options if ":" in option)))
    flags = [f"--{option}" for option in options if ":" not in option]
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [*DIES_WITH_US, "nsenter", f"--net=/run/netns/{namespace}", "--", program, "--foreground",
             f"--config-file={config}", "-o", f"allow_other{',ro' if read_only else ''}", *flags,
             volume["bucketName"], str(place)],
            stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
            # Of no person who is logged in here: the pod's own identity.
            env={"PATH": os.environ["PATH"], "HOME": str(place.parent)},
        )  # fmt: skip
    deadline = time.monotonic() + _MOUNT_TIMEOUT_S
    while not os.path.ismount(place):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise KubernetesError(f"gs://{volume['bucketName']} can't be mounted: {' '.join(last)}")
        time.sleep(0.05)


def mount_disk(image: str, place: Path, options: Sequence[str] = ()) -> None:
    """Mount the file system of a disk that is attached read-only, with a volume's options.

    Raises:
        KubernetesError: there is no such disk, or its journal would have to be replayed.
    """
    if os.path.ismount(place):
        return
    if not image:
        raise KubernetesError("the volume's disk isn't there")
    line = ["mount", "-t", "ext4", "-o", ",".join(("loop", "ro", *options)), image, str(place)]
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    if done.returncode:
        raise KubernetesError(f"the disk can't be mounted: {done.stderr.strip()}")


def unmount(place: Path) -> None:
    """Take a mount away, whoever uses it; gcsfuse ends with it."""
    if os.path.ismount(place):
        subprocess.run(["umount", "--lazy", str(place)], check=False, capture_output=True)


def _nested(options: object) -> dict[str, object]:
    """`file-cache:max-size-mb:-1` as gcsfuse's configuration file has it."""
    nested: dict[str, object] = {}
    for option in options:  # type: ignore[attr-defined]
        *parents, last, value = option.split(":")
        level = nested
        for parent in parents:
            level = level.setdefault(parent, {})  # type: ignore[assignment]
        level[last] = yaml.safe_load(value)
    return nested
