"""The controllers' versions, which tests/kubernetes tries together. tools/queue/go.mod has them, too."""

from types import MappingProxyType

KUEUE, JOBSET = "v0.18.4", "v0.12.0"
IMAGES = MappingProxyType(
    {
        "kueue": f"registry.k8s.io/kueue/kueue:{KUEUE}",
        "jobset": f"registry.k8s.io/jobset/jobset:{JOBSET}",
    }
)
