"""Messages of the layer where the controllers don't come up."""

from collections.abc import Iterator
from typing import Any

import pytest

from infra.errors import InfraError
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from infra.layers.queue import ready

BACK_OFF = 'Back-off pulling image "registry.k8s.io/kueue/kueue:v0.19.2": ErrImagePull: i/o timeout'


class Cluster:
    """Takes no object, since a controller has no image."""

    def __init__(self, *_: object) -> None:
        pass

    def create(self, *_: object) -> None:
        raise RequestError(Failure(Kind.TRANSIENT, "no endpoints available for service"))

    def items(self, path: str) -> Iterator[dict[str, Any]]:
        if "kueue-system" not in path:
            raise RequestError(Failure(Kind.PERMISSION, "denied"))
        waiting = {"reason": "ImagePullBackOff", "message": BACK_OFF}
        states = [{"state": {"running": {}}}, {"state": {"waiting": waiting}}]
        yield {"metadata": {"name": "kueue-1"}, "status": {"containerStatuses": states}}


def test_a_controller_that_has_no_image_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.google.kubernetes.Cluster", Cluster)
    with pytest.raises(InfraError) as refused:
        ready.wait("my-project", "gke-1.us-east5.gke.goog", timeout_s=0)
    first, held, fix = str(refused.value).splitlines()
    assert first.startswith("the cluster took no JobSet within 0 s: no endpoints")
    assert held.strip() == f"kueue-1: ImagePullBackOff: {BACK_OFF}"
    assert fix.startswith("    fix: kubectl get pods -A")


def test_the_layers_own_policy_is_no_refusal_of_a_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an update of a controller's image, the policy of the time before is in force."""
    text = (
        "jobsets.jobset.x-k8s.io is forbidden: ValidatingAdmissionPolicy 'tpu-jobs' with binding 'tpu-jobs' "
        "denied request: the namespace default is no team's"
    )

    class Denying(Cluster):
        def create(self, path: str, *_: object) -> None:
            if "jobsets" in path:
                raise RequestError(Failure(Kind.INVALID, text))

    monkeypatch.setattr("infra.google.kubernetes.Cluster", Denying)
    assert ready.wait("my-project", "gke-1.us-east5.gke.goog", timeout_s=0) < 1
