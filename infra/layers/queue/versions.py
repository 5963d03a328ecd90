"""Versions of the controllers: those of tools/queue/go.mod, tried together by tests/rehearsal/kubernetes."""

from types import MappingProxyType

KUEUE, JOBSET = "v0.18.4", "v0.12.0"
IMAGES = MappingProxyType(
    {
        "kueue": f"registry.k8s.io/kueue/kueue:{KUEUE}",
        "jobset": f"registry.k8s.io/jobset/jobset:{JOBSET}",
    }
)
