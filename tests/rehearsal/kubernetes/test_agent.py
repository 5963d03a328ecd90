"""The imitated kubelet where a pod's deletion and its node's end meet."""

import threading
import time

import pytest

from rehearsal.kubernetes.plane.api import Object
from tests.rehearsal.kubernetes.lab import MACHINE, Lab, pool

# Time for a deletion between the notice and the pod's end.
SLOW_TO_END = "trap 'sleep 3; exit 1' TERM; while :; do sleep 0.1; done"


def pod(name: str, node: str) -> Object:
    worker = {"name": "worker", "image": MACHINE, "command": ["sh", "-c", SLOW_TO_END]}
    meta = {"name": name, "namespace": "default"}
    spec = {"nodeName": node, "containers": [worker], "tolerations": [{"operator": "Exists"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


@pytest.mark.parametrize("watched", [True, False])
def test_a_pod_that_is_deleted_while_its_node_shuts_down_is_gone_with_the_node(
    watched: bool, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the watch tells of the deletion too late: Kubernetes itself keeps such a pod for 40 s."""
    node, *_ = lab.add_pool(pool(f"ending-{watched}".lower()), 1)
    created = lab.api.create(pod(f"slow-{watched}".lower(), node))
    path = lab.api.path({**created, "apiVersion": "v1", "kind": "Pod"})
    name = created["metadata"]["name"]

    def phase() -> str:
        answer = lab.api.get("v1", "Pod", name, "default")
        return "gone" if answer is None else str(answer["status"]["phase"])

    lab.until(lambda: phase() == "Running", "the pod")
    time.sleep(0.5)  # until its shell has set the trap
    if not watched:
        monkeypatch.setattr(lab.agent, "_take", lambda event, pod: None)
    notice = threading.Thread(target=lab.agent.shut_down, args=(node,))
    notice.start()
    time.sleep(0.5)
    assert phase() == "Running"  # the notice came first
    lab.api.delete(path, grace_s=30)
    lab.until(lambda: phase() == "gone", "the pod's end", 15)
    notice.join()
