"""Errors of the emulated clusters."""

from rehearsal.errors import RehearsalError


class KubernetesError(RehearsalError):
    """The control plane, or a pod, can't be run."""


class UnknownKindError(KubernetesError):
    """The API server has no such kind, or not yet."""


class ApiServerError(KubernetesError):
    """The API server refused a request: `status` is HTTP's, `reason` Kubernetes' (`NotFound`, `Conflict`)."""

    def __init__(self, status: int, reason: str, message: str):
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason = status, reason
