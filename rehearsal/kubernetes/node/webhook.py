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
import ssl
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rehearsal.kubernetes.plane.api import Object
from rehearsal.kubernetes.plane.control_plane import ControlPlane

_ADDRESS, _NAME, _TPU = "127.0.0.1", "gke-tpu-imitated", "google.com/tpu"
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


class Webhook:
    """A server beside one control plane, which asks it about every Job."""

    def __init__(self, control_plane: ControlPlane):
        self._control_plane = control_plane

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
                response: Object = {"uid": request["uid"], "allowed": True}
                if patch := injected(request["object"]):
                    encoded = base64.b64encode(json.dumps(patch).encode()).decode()
                    response |= {"patchType": "JSONPatch", "patch": encoded}
                review = {
                    "apiVersion": "admission.k8s.io/v1",
                    "kind": "AdmissionReview",
                    "response": response,
                }
                answer = json.dumps(review).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Log nothing: reviews are frequent."""

        self._server = ThreadingHTTPServer((_ADDRESS, 0), Handler)

    def start(self) -> None:
        """Answer, in threads, and register with the API server, which must be up."""
        authority = self._control_plane.authority
        pair = authority.server("gke-webhook", ["localhost"], [_ADDRESS])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        rule = {
            "apiGroups": ["batch"],
            "apiVersions": ["v1"],
            "resources": ["jobs"],
            "operations": ["CREATE"],
        }
        client = {
            "url": f"https://{_ADDRESS}:{self._server.server_port}/jobs",
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

    def stop(self) -> None:
        """Stop answering; the API server works without it."""
        self._server.shutdown()
        self._server.server_close()
