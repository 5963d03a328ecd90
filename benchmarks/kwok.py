"""Nodes and pods without machines and processes: kwok plays the kubelet of nodes that have its label.

For questions of scale, where what pods compute is of no interest: a pod is Running at once, and Succeeded
after the time that its annotation names. `agent.py` runs pods of other nodes beside it.
https://kwok.sigs.k8s.io/docs/user/configuration/ and https://kwok.sigs.k8s.io/docs/user/stages-configuration/
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rehearsal.kubernetes.plane.api import Api, Object
from rehearsal.kubernetes.plane.control_plane import ADDRESS, DIES_WITH_US
from rehearsal.kubernetes.plane.programs import program

RUN_FOR = "rehearsal/run-for"
"""A pod's annotation: how long it runs, such as 12s."""
_LABEL = "rehearsal/kwok"
_STOP_TIMEOUT_S = 10.0
_PARALLEL = 16
_LEASE_S = 40
_GONE = {"key": ".metadata.deletionTimestamp", "operator": "Exists"}
_THERE = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}
_NODE = """
conditions:
- {type: Ready, status: "True", reason: KubeletReady, message: kwok,
   lastHeartbeatTime: {{ Now | Quote }}, lastTransitionTime: {{ Now | Quote }}}
addresses: [{type: InternalIP, address: {{ NodeIP | Quote }}}]
"""
_RUNNING = """
{{ $now := Now }}
phase: Running
startTime: {{ $now | Quote }}
conditions:
{{ range $kind := list "Initialized" "Ready" "ContainersReady" }}
- {type: {{ $kind }}, status: "True", lastTransitionTime: {{ $now | Quote }}}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- {name: {{ .name | Quote }}, image: {{ .image | Quote }}, imageID: {{ .image | Quote }},
   ready: true, started: true, restartCount: 0, state: {running: {startedAt: {{ $now | Quote }}}}}
{{ end }}
hostIP: {{ NodeIPWith .spec.nodeName | Quote }}
podIP: {{ PodIPWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace | Quote }}
"""
_ENDED = """
{{ $now := Now }}
phase: PHASE
containerStatuses:
{{ range .spec.containers }}
- {name: {{ .name | Quote }}, image: {{ .image | Quote }}, imageID: {{ .image | Quote }},
   ready: false, started: false, restartCount: 0,
   state: {terminated: {exitCode: CODE, reason: REASON, finishedAt: {{ $now | Quote }},
                        startedAt: {{ $now | Quote }}}}}
{{ end }}
"""


class Kwok:
    """The program; `start` it before the first pod of its nodes."""

    def __init__(self, api: Api, folder: Path, kubeconfig: Path):
        self._api, self._folder, self._kubeconfig = api, folder, kubeconfig
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return at once; nodes are ready soon after they were added."""
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "kwok.yaml"
        config.write_text("\n---\n".join(map(json.dumps, _configuration())))
        with (self._folder / "kwok.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*DIES_WITH_US, program("kwok"), f"--kubeconfig={self._kubeconfig}", f"--config={config}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder,
            )  # fmt: skip

    def stop(self) -> None:
        """End it; its nodes stay."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def add(self, nodes: Iterable[Object]) -> None:
        """Create nodes that are its own."""
        for node in nodes:
            meta = node["metadata"]
            own = {**meta, "labels": {**meta["labels"], _LABEL: "true"}}
            self._api.create({**node, "metadata": own})


def _configuration() -> Iterable[Mapping[str, Any]]:
    options = {
        "manageNodesWithLabelSelector": f"{_LABEL}=true", "cidr": "10.244.0.0/16", "nodeIP": ADDRESS,
        "nodeLeaseDurationSeconds": _LEASE_S,
        # Zero, unless given, and then it ends.
        "nodeLeaseParallelism": _PARALLEL, "podPlayStageParallelism": _PARALLEL,
        "nodePlayStageParallelism": _PARALLEL, "podsOnNodeSyncParallelism": 1,
    }  # fmt: skip
    yield {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "metadata": {"name": "kwok"},
        "options": options,
    }
    ready = '.status.conditions.[] | select( .type == "Ready" ) | .status'
    not_ready = {"key": ready, "operator": "NotIn", "values": ["True"]}
    yield _stage("node-ready", "Node", [not_ready], {"statusTemplate": _NODE})
    yield _stage("pod-run", "Pod", [_THERE, _phase("Pending"), not_ready], {"statusTemplate": _RUNNING})
    end = _stage("pod-end", "Pod", [_THERE, _phase("Running")], {"statusTemplate": _ended("Succeeded", 0)})
    delay = {"durationFrom": {"expressionFrom": f'.metadata.annotations["{RUN_FOR}"]'}}
    yield {**end, "spec": {**end["spec"], "delay": delay}}
    # In two steps: a Job with a podFailurePolicy waits for a deleted pod until it has failed.
    failed = {"statusTemplate": _ended("Failed", 143)}
    yield _stage("pod-terminate", "Pod", [_GONE, _phase("Pending", "Running")], failed)
    yield _stage("pod-delete", "Pod", [_GONE, _phase("Succeeded", "Failed")], {"delete": True})


def _stage(name: str, kind: str, when: list[Object], then: Object) -> Object:
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": when},
            "next": then,
        },
    }


def _phase(*phases: str) -> Object:
    return {"key": ".status.phase", "operator": "In", "values": list(phases)}


def _ended(phase: str, code: int) -> str:
    reason = "Error" if code else "Completed"
    return _ENDED.replace("PHASE", phase).replace("CODE", str(code)).replace("REASON", reason)
