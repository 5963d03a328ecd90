"""Imitates GKE's webhook for TPU jobs, as far as Google's page describes it, and no further.

"GKE automatically injects these environment variables by using a mutating webhook when a Job is created with
the completionMode: Indexed, subdomain, parallelism > 1, and requesting google.com/tpu properties":
TPU_WORKER_ID, "a unique integer for each Pod", and TPU_WORKER_HOSTNAMES, "a comma-separated list of TPU VM
hostnames or IP addresses … ordered and zero indexed by the TPU_WORKER_ID".
https://cloud.google.com/kubernetes-engine/docs/how-to/tpus, as quoted in 2023 by
https://github.com/abatilo/gke-tpu-env-injector; that page has no other variable, so none is added.
https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rehearsal.authority import Pair
from rehearsal.kubernetes.node.answering import ADDRESS, JsonServer
from rehearsal.kubernetes.plane.api import Object
from rehearsal.kubernetes.plane.control_plane import ControlPlane

_NAME, _TPU = "gke-tpu-imitated", "google.com/tpu"
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def injected(job: Mapping[str, Any]) -> list[Object]:
    """Return the JSON patch of a new Job; empty where GKE injects nothing. Variables that are set stay."""
    spec = job["spec"]
    pod = spec["template"]["spec"]
    pods, subdomain = spec.get("parallelism", 1), pod.get("subdomain", "")
    if spec.get("completionMode") != "Indexed" or not subdomain or pods <= 1:
        return []
    names = ",".join(f"{job['metadata']['name']}-{index}.{subdomain}" for index in range(pods))
    variables: Sequence[Object] = (
        {"name": "TPU_WORKER_ID", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}},
        {"name": "TPU_WORKER_HOSTNAMES", "value": names},
    )
    patch = []
    for number, container in enumerate(pod["containers"]):
        resources = container.get("resources", {})
        if not any(_TPU in (resources.get(key) or {}) for key in ("limits", "requests")):
            continue
        present = container.get("env") or []
        missing = [
            variable
            for variable in variables
            if variable["name"] not in {variable["name"] for variable in present}
        ]
        path = f"/spec/template/spec/containers/{number}/env"
        patch.append({"op": "add", "path": path, "value": [*present, *missing]})
    return patch


class Webhook(JsonServer):
    """A server beside one control plane, which sends it every Job for admission."""

    def __init__(self, control_plane: ControlPlane):
        super().__init__(_reviewed)
        self._control_plane = control_plane

    def start(self, pair: Pair | None = None) -> None:
        """Answer, and register with the API server, which must be up."""
        authority = self._control_plane.authority
        super().start(pair or authority.server("gke-webhook", ["localhost"], [ADDRESS]))
        rule = {
            "apiGroups": ["batch"],
            "apiVersions": ["v1"],
            "resources": ["jobs"],
            "operations": ["CREATE"],
        }
        client = {
            "url": f"https://{self.place}/jobs",
            "caBundle": base64.b64encode(authority.ca.read_bytes()).decode(),
        }
        webhook = {
            "name": "tpu-jobs.gke.rehearsal.example", "clientConfig": client, "rules": [rule],
            "failurePolicy": "Ignore", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        }  # fmt: skip
        self._control_plane.api.apply(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "MutatingWebhookConfiguration",
                "metadata": {"name": _NAME},
                "webhooks": [webhook],
            },
            "rehearsal",
        )


def _reviewed(path: str, review: Any) -> tuple[int, Any]:
    """Return the AdmissionReview that answers one."""
    request = review["request"]
    response: Object = {"uid": request["uid"], "allowed": True}
    if patch := injected(request["object"]):
        encoded = base64.b64encode(json.dumps(patch).encode()).decode()
        response |= {"patchType": "JSONPatch", "patch": encoded}
    return 200, {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
