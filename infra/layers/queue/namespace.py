"""Objects of a team on the cluster: a namespace, an account for its pods, members' rights, and volumes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from infra.layers.queue.kueue import Object, Team, local_queue

CHECKPOINTS, DATA = "checkpoints", "data"
_GCSFUSE, _DISK = "gcsfuse.csi.storage.gke.io", "pd.csi.storage.gke.io"
_READ = ["get", "list", "watch"]
# What its people may do there: submit and cancel jobs, and see how they fare. No pods of their own making,
# which would pass the queue by, and no secrets.
_RULES = [
    {
        "apiGroups": ["jobset.x-k8s.io"],
        "resources": ["jobsets"],
        "verbs": [*_READ, "create", "delete", "patch"],
    },
    {"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads", "localqueues"], "verbs": _READ},
    {
        "apiGroups": ["visibility.kueue.x-k8s.io"],
        "resources": ["localqueues/pendingworkloads"],
        "verbs": ["get"],
    },
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": _READ},
    {
        "apiGroups": [""],
        "resources": ["pods", "pods/log", "events", "persistentvolumeclaims"],
        "verbs": _READ,
    },
]
_SUBJECTS = {"user": "User", "group": "Group", "serviceAccount": "User"}


@dataclass(frozen=True)
class Disk:
    """A zone's data disk: its name, which carries the snapshot's, and its id, which may be an output."""

    zone: str
    name: str
    id: Any


@dataclass(frozen=True)
class Volumes:
    """Volumes of all teams' pods: the bucket, whose name may be an output, and the data disks."""

    bucket: Any
    disks: Sequence[Disk] = ()


def data_claim(disk: str) -> str:
    """Name of the claims to a data disk: another one has others, since a claim's volume never changes."""
    return f"{DATA}-{disk}"


def objects(
    team: Team, members: Sequence[str], account: str, google_account: str | None, volumes: Volumes
) -> Iterator[Object]:
    """All of a team, each behind what it names.

    `members` are IAM's (`user:ada@example.com`); `account` is the Kubernetes service account of its pods,
    `google_account` the one at Google that they may impersonate, if any.
    """
    space = team.namespace
    yield {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": space,
            # https://kubernetes.io/docs/concepts/security/pod-security-standards/
            "labels": {"tpu-team": team.name, "pod-security.kubernetes.io/enforce": "baseline"},
        },
    }
    annotations = {"iam.gke.io/gcp-service-account": google_account} if google_account else {}
    yield {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": account, "namespace": space, "annotations": annotations},
        "automountServiceAccountToken": False,
    }
    # No pod of another namespace reaches its pods.
    yield {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "same-namespace", "namespace": space},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": {}}]}]},
    }
    rbac = "rbac.authorization.k8s.io"
    named = {"name": "submit-jobs", "namespace": space}
    yield {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": named, "rules": _RULES}
    subjects = [_subject(member) for member in members]
    yield {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": named,
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": named["name"]},
        "subjects": subjects,
    }
    yield local_queue(team)
    yield from _volume(space, CHECKPOINTS, "ReadWriteMany", "5Gi", {
        # The size is required and has no effect; a bucket has no folders but those that names imply.
        "mountOptions": ["implicit-dirs"],
        "csi": {"driver": _GCSFUSE, "volumeHandle": volumes.bucket},
    })  # fmt: skip
    for disk in volumes.disks:
        zones = {"key": "topology.gke.io/zone", "operator": "In", "values": [disk.zone]}
        term = {"matchExpressions": [zones]}
        yield from _volume(space, data_claim(disk.name), "ReadOnlyMany", "1Gi", {
            # As on slices: no host replays the journal of a disk that all of them read.
            "mountOptions": ["noload"],
            "csi": {"driver": _DISK, "volumeHandle": disk.id, "fsType": "ext4", "readOnly": True},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        })  # fmt: skip


def _subject(member: str) -> Object:
    kind, _, name = member.partition(":")
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": _SUBJECTS[kind], "name": name}


def _volume(space: str, name: str, mode: str, size: str, spec: Object) -> Iterator[Object]:
    """Yield a volume that is there, and the claim of a namespace to it.

    https://cloud.google.com/kubernetes-engine/docs/how-to/cloud-storage-fuse-csi-driver-pv and
    https://cloud.google.com/kubernetes-engine/docs/how-to/persistent-volumes/preexisting-pd
    """
    common = {"accessModes": [mode], "storageClassName": ""}
    unwatched = {"annotations": {"pulumi.com/skipAwait": "true"}}  # the two are bound to each other at once
    volume = f"{space}-{name}"
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": volume, **unwatched},
        "spec": {
            **common,
            **spec,
            "capacity": {"storage": size},
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": space, "name": name},
        },
    }
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": space, **unwatched},
        "spec": {**common, "volumeName": volume, "resources": {"requests": {"storage": size}}},
    }
