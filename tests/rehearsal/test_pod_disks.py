"""Data disks of pods: attached read-only, so that no journal can be replayed."""

import os
import subprocess
from pathlib import Path

import pytest

from infra.layers.queue.kueue import Team
from infra.layers.queue.namespace import Disk, Volumes, objects
from rehearsal.kubernetes.errors import KubernetesError
from rehearsal.kubernetes.node.surroundings import mount_disk, unmount

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@pytest.fixture(name="dirty")
def _dirty(tmp_path: Path) -> str:
    """Return an ext4 whose journal wasn't written back, as in a snapshot of a mounted disk."""
    image = tmp_path / "disk"
    image.write_bytes(bytes(8 << 20))
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    subprocess.run(["debugfs", "-w", "-R", "feature needs_recovery", image], check=True, capture_output=True)
    return str(image)


def test_a_snapshot_of_a_mounted_disk_is_mounted_with_the_layers_options(dirty: str, tmp_path: Path) -> None:
    place = tmp_path / "data"
    place.mkdir()
    with pytest.raises(KubernetesError, match="can't be mounted"):
        mount_disk(dirty, place)
    volumes = Volumes("bucket", [Disk("us-east5-b", "data", "id")])
    (volume,) = [
        item
        for item in objects(Team("vision", "vision"), [], "trainer", None, volumes)
        if item["kind"] == "PersistentVolume" and item["spec"]["csi"]["driver"] == "pd.csi.storage.gke.io"
    ]
    try:
        mount_disk(dirty, place, volume["spec"]["mountOptions"])
        assert os.path.ismount(place)
    finally:
        unmount(place)
