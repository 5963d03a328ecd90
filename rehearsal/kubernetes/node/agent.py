"""Imitates the kubelet: runs the pods of its nodes as processes, and reports their status to the API server.

Of a pod it carries out containers, environment, volumes, readiness by HTTP, restarts, and termination with
its grace. Of a pull it carries out whether it succeeds: `images` has the stand-in of each image.
https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
"""

from __future__ import annotations

import contextlib
import datetime
import fnmatch
import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import requests

from rehearsal.errors import RehearsalError
from rehearsal.kubernetes.errors import ApiServerError, KubernetesError
from rehearsal.kubernetes.node import logs, pulling
from rehearsal.kubernetes.node.logs import LogServer
from rehearsal.kubernetes.node.names import Names
from rehearsal.kubernetes.node.pulling import Puller
from rehearsal.kubernetes.node.sandbox import Container, Image, Sandbox
from rehearsal.kubernetes.node.surroundings import ALONE, BUNDLE, Surroundings
from rehearsal.kubernetes.node.volumes import Volumes, expanded
from rehearsal.kubernetes.plane.api import Api, Object, now
from rehearsal.kubernetes.plane.control_plane import ADDRESS, PORT

_WATCH_S, _POLL_S = 300.0, 0.1
_LEASE_EVERY_S, _LEASE_S = 10.0, 40
_RETRY_S = 0.5
_KILLED_S = 3.0  # for the report of what had to be killed
_VERSION = "v1.35.7-gke.1222000"
_IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": ADDRESS, "KUBERNETES_SERVICE_PORT": str(PORT)}
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Agent:
    """The kubelet of several nodes. `start` returns at once; `stop` kills what it runs."""

    def __init__(self, api: Api, folder: Path, images: Mapping[str, Image], around: Surroundings = ALONE):
        """`images`: by patterns of their names, such as `*/kueue/kueue*`."""
        self.around = around
        self._api, self._folder, self._images = api, folder, dict(images)
        self.nodes: dict[str, Object] = {}
        self._pods: dict[str, _Pod] = {}
        self.puller = Puller(around.pull)
        self._numbers = itertools.count(1)
        self._stopping = threading.Event()
        self._names = Names(self.addresses, around.names)
        self._logs = LogServer(folder, self._container)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._watch, self._renew)]

    def addresses(self, name: str) -> list[str]:
        """Return the addresses of the pods of a name: `HOSTNAME.SUBDOMAIN.NAMESPACE`, of a headless
        service.
        """
        return [pod.address for pod in self._pods.values() if pod.address and pod.full_name == name]

    def start(self) -> None:
        """Answer names, watch pods, and keep the nodes' leases."""
        self._names.start()
        self._logs.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End every pod, without a word to the API server."""
        self._stopping.set()
        self._names.stop()
        self._logs.stop()
        for pod in list(self._pods.values()):
            pod.kill()

    def add(self, nodes: Sequence[Object]) -> None:
        """Register nodes: each is ready from then on."""
        for node in nodes:
            self._api.apply(node, "rehearsal-agent")
            self.nodes[node["metadata"]["name"]] = node
            self.puller.forget(node["metadata"]["name"])
            self._tell_node(node)
            self._renew_one(node["metadata"]["name"])
            for pod in self._api.list("v1", "Pod", fieldSelector=f"spec.nodeName={node['metadata']['name']}"):
                self._take("ADDED", pod)  # of a machine that was there before, under the same name

    def shut_down(self, *names: str, grace_s: float = 15.0) -> None:
        """Machines with notice of their end: the kubelet ends their pods and reports them as disrupted.

        https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/
        """
        for name in names:  # no new pod is taken from here on
            self._tell_node(self.nodes.pop(name), ready="False", reason="KubeletNotReady")
        ending = [pod for pod in self._pods.values() if pod.node in names]
        for pod in ending:
            pod.disrupt(grace_s)
        deadline = time.monotonic() + grace_s + _KILLED_S
        while any(pod.runs for pod in ending) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        self.lose(*names)

    def lose(self, *names: str) -> None:
        """Machines that are gone: their pods die at once, and no report is sent."""
        for name in names:
            self.nodes.pop(name, None)
        for pod in list(self._pods.values()):
            if pod.node in names:
                pod.kill()
                self._pods.pop(pod.uid, None)

    def log(self, namespace: str, name: str, container: str) -> str:
        """Return the output of a pod's container."""
        return logs.text(self._container(namespace, name, container)[0])

    def _container(self, namespace: str, name: str, container: str) -> tuple[Path, Callable[[], bool]]:
        for pod in self._pods.values():
            if (pod.namespace, pod.name) == (namespace, name):
                return pod.folder / f"{container}.log", partial(pod.runs_container, container)
        raise KubernetesError(f"there is no pod {name} in {namespace} here")

    def image(self, name: str) -> Image:
        """Return the local image for an image name; KubernetesError if there is none."""
        if built := self.around.image(name):
            return built
        for pattern, image in self._images.items():
            if fnmatch.fnmatchcase(name, pattern):
                return image
        raise KubernetesError(f'nothing stands for the image "{name}"')

    def address(self) -> tuple[int, str]:
        """Return a new pod's number and address."""
        number = next(self._numbers)
        return number, f"172.20.{1 + number // 250}.{1 + number % 250}"

    # Nodes

    def _tell_node(self, node: Object, ready: str = "True", reason: str = "KubeletReady") -> None:
        condition = {
            "type": "Ready", "status": ready, "reason": reason, "message": "",
            "lastHeartbeatTime": now(), "lastTransitionTime": now(),
        }  # fmt: skip
        status = {
            "conditions": [condition],
            "nodeInfo": {"kubeletVersion": _VERSION},
            "addresses": [{"type": "InternalIP", "address": ADDRESS}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": logs.PORT}},
            **node.get("status", {}),
        }
        self._api.patch_status(self._api.path(node), status)

    def _renew_one(self, name: str) -> None:
        moment = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": name, "leaseDurationSeconds": _LEASE_S, "renewTime": moment}
        meta = {"name": name, "namespace": "kube-node-lease"}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
        self._api.apply(lease, "rehearsal-agent")

    def _renew(self) -> None:
        while not self._stopping.wait(_LEASE_EVERY_S):
            for name in list(self.nodes):
                try:
                    self._renew_one(name)
                except ApiServerError:
                    break  # the API server is away; again at the next turn

    # Pods

    def _watch(self) -> None:
        while not self._stopping.is_set():
            seen = set()
            with contextlib.suppress(
                ApiServerError
            ):  # the API server is away; the next watch finds all again
                for event, pod in self._api.watch("v1", "Pod", _WATCH_S):
                    if self._stopping.is_set():
                        return
                    self._take(event, pod)
                    seen.add(pod["metadata"]["uid"])
                self._forget_others(seen)
            time.sleep(_POLL_S)

    def _forget_others(self, seen: set[str]) -> None:
        """End pods whose deletion was missed while no watch was open: a full listing doesn't have them."""
        for uid, pod in list(self._pods.items()):
            if uid not in seen and self._api.get("v1", "Pod", pod.name, pod.namespace) is None:
                pod.kill()

    def _take(self, event: str, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        known = self._pods.get(uid)
        if event == "DELETED":
            if known:
                known.kill()
            return
        if known is None and pod["spec"].get("nodeName") not in self.nodes:
            return
        if known is None and pod.get("status", {}).get("phase", "Pending") == "Pending":
            known = self._pods[uid] = _Pod(self, self._api, pod, self._folder / "pods" / uid)
            known.start()
        if known is None and pod["status"].get("phase") == "Running":
            self._give_up(pod)
        if known and "deletionTimestamp" in pod["metadata"]:
            known.terminate(pod["metadata"].get("deletionGracePeriodSeconds", 30))

    def _give_up(self, pod: Object) -> None:
        """Fail a pod that ran before the machine was restarted: its containers are gone."""
        path = self._api.path(pod)
        if "deletionTimestamp" in pod["metadata"]:
            self._api.delete(path, grace_s=0)
            return
        ended = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "its machine was restarted"}
        statuses = [
            {**status, "ready": False, "state": {"terminated": ended}}
            for status in pod["status"].get("containerStatuses", ())
        ]
        self._api.patch_status(path, {"phase": "Failed", "containerStatuses": statuses})


class _Pod:
    """Life of a pod, in its own thread."""

    def __init__(self, agent: Agent, api: Api, pod: Object, folder: Path):
        self._agent, self._api, self._pod, self.folder = agent, api, pod, folder
        meta = pod["metadata"]
        self.uid = meta["uid"]
        self.name, self.namespace, self.node = meta["name"], meta["namespace"], pod["spec"]["nodeName"]
        self._path = api.path(pod)
        self._grace: float | None = None
        self._gone, self._over = threading.Event(), threading.Event()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._restarts: dict[str, int] = {}
        self.address = ""
        self.full_name = f"{self._hostname()}.{pod['spec'].get('subdomain', '')}.{self.namespace}"
        self._terminating: set[str] = set()
        self._disrupted = self._deleted = False
        self._thread = threading.Thread(target=self._live, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def terminate(self, grace_s: float) -> None:
        """Delete the pod: SIGTERM, and SIGKILL after the grace period."""
        self._deleted = True
        self._end_within(grace_s)

    def disrupt(self, grace_s: float) -> None:
        """End it since its node ends; it stays as a failed pod."""
        self._disrupted = True
        self._end_within(grace_s)

    def _end_within(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        self._grace = deadline if self._grace is None else min(self._grace, deadline)

    @property
    def runs(self) -> bool:
        """Return True until the pod's life has ended."""
        return self._thread.is_alive()

    def runs_container(self, name: str) -> bool:
        """Return True if a container runs, or may still start."""
        return name in self._running or (self.runs and not self._over.is_set())

    def kill(self) -> None:
        """End it at once, without a report."""
        self._gone.set()
        for process in list(self._running.values()):
            _signal(process, signal.SIGKILL)

    def _live(self) -> None:
        number, address = self._agent.address()
        self.address = address
        sandbox, volumes = None, None
        try:
            self._pod["status"] = {**self._pod.get("status", {}), "podIP": address, "hostIP": ADDRESS}
            sandbox = Sandbox(f"pod{number}", address, self.folder, self._hostname(), self.namespace)
            self._agent.around.joined(self._pod, address)
            volumes = self._volumes(sandbox.name)
            if volumes is None or not self._pulled():
                return
            self._run(sandbox, volumes, address)
        except (RehearsalError, KeyError) as error:
            if not self._gone.is_set():
                self._report({"phase": "Failed", "reason": "AgentError", "message": str(error)})
        finally:
            if volumes:
                volumes.close()
            if sandbox:
                sandbox.close()
            self._agent.around.left(address)

    def _hostname(self) -> str:
        return str(self._pod["spec"].get("hostname", self.name))

    def _volumes(self, network: str) -> Volumes | None:
        """Return the volumes, once their sources exist; None if the pod is deleted before."""
        while not self._gone.is_set():
            if self._grace is not None:
                self._api.delete(self._path, grace_s=0)
                return None
            try:
                return Volumes(self._api, self._pod, self.folder / "volumes", network, self._agent.around)
            except KubernetesError as error:
                self._report({"phase": "Pending", "reason": "ContainerCreating", "message": str(error)})
                time.sleep(_RETRY_S)
        return None

    def _pulled(self) -> bool:
        """Wait until every image is there; False if the pod is deleted before."""
        reason, containers = pulling.ERROR, self._pod["spec"]["containers"]
        while not self._gone.is_set():
            if self._grace is not None:
                self._api.delete(self._path, grace_s=0)
                return False
            if not (errors := self._agent.puller.errors(self.node, containers)):
                return True
            statuses = pulling.waiting(containers, errors, reason)
            self._report({"phase": "Pending", "containerStatuses": statuses})
            time.sleep(_RETRY_S)
            reason = pulling.BACK_OFF
        return False

    def _run(self, sandbox: Sandbox, volumes: Volumes, address: str) -> None:
        spec = self._pod["spec"]
        containers = {container["name"]: container for container in spec["containers"]}
        for container in containers.values():
            self._start(sandbox, volumes, container)
        started, ended = now(), dict[str, Object]()
        reported, refreshed = None, time.monotonic()
        policy = spec.get("restartPolicy", "Always")
        while not self._gone.is_set():
            for name, process in list(self._running.items()):
                code = process.poll()
                if code is None:
                    continue
                del self._running[name]
                code = 128 - code if code < 0 else code
                again = self._grace is None and (policy == "Always" or (policy == "OnFailure" and code))
                if again:
                    self._restarts[name] = self._restarts.get(name, 0) + 1
                    time.sleep(_RETRY_S)
                    self._start(sandbox, volumes, containers[name])
                else:
                    ended[name] = {"exitCode": code, "reason": "Error" if code else "Completed",
                                   "startedAt": started, "finishedAt": now()}  # fmt: skip
            status = self._status(address, started, ended)
            if status != reported:
                self._report(status)
                reported = status
            if not self._running:
                self._over.set()
                break
            self._stop_in_order()
            if time.monotonic() - refreshed > 1:
                volumes.refresh()
                refreshed = time.monotonic()
            time.sleep(_POLL_S)
        while self._grace is None and not self._gone.is_set():
            time.sleep(_POLL_S)  # its log stays readable until it is deleted
        if not self._gone.is_set() and self._deleted:
            self._api.delete(self._path, grace_s=0)

    def _stop_in_order(self) -> None:
        if self._grace is None:
            return
        late = time.monotonic() > self._grace
        for name, process in self._running.items():
            if late:
                _signal(process, signal.SIGKILL)
            elif name not in self._terminating:  # once: a second one means "at once" to many programs
                self._terminating.add(name)
                _signal(process, signal.SIGTERM)

    def _start(self, sandbox: Sandbox, volumes: Volumes, container: Object) -> None:
        image, around = self._agent.image(container["image"]), self._agent.around
        given = {**around.environment, **volumes.environment(container)}
        hostname = self._pod["spec"].get("hostname", self.name)
        environment = {
            "PATH": _DEFAULT_PATH, **image.environment, "HOSTNAME": hostname, **_IN_CLUSTER, **given,
        }  # fmt: skip
        line = [*(container.get("command") or image.command), *container.get("args", ())]
        not_root = (self._pod["spec"].get("securityContext") or {}).get("runAsNonRoot", False)
        self._running[container["name"]] = sandbox.start(container["name"], Container(
            image, [expanded(word, given) for word in line], environment,
            self._mounts(image, volumes, container), directory=container.get("workingDir", "/"),
            is_root=not not_root,
        ))  # fmt: skip

    def _mounts(self, image: Image, volumes: Volumes, mount: Object) -> list[tuple[Path, str, bool]]:
        bundle = self._agent.around.bundle
        trusted = [(bundle, BUNDLE, True)] if bundle and image.root else []
        return [*trusted, *volumes.mounts(mount)]

    # Reports to the API server

    def _status(self, address: str, started: str, ended: Mapping[str, Object]) -> Object:
        containers = self._pod["spec"]["containers"]
        ready = {
            container["name"]: container["name"] in self._running and _is_ready(container, address)
            for container in containers
        }
        states = []
        for container in containers:
            name = container["name"]
            state = {"terminated": ended[name]} if name in ended else {"running": {"startedAt": started}}
            states.append({
                "name": name, "image": container["image"], "imageID": container["image"],
                "ready": ready[name],
                "restartCount": self._restarts.get(name, 0), "started": name not in ended, "state": state,
            })  # fmt: skip
        phase = "Running"
        if len(ended) == len(containers):
            phase = "Failed" if any(container["exitCode"] for container in ended.values()) else "Succeeded"
        fine = "True" if all(ready.values()) else "False"
        conditions = [
            {"type": kind, "status": value, "lastTransitionTime": started}
            for kind, value in (("Initialized", "True"), ("Ready", fine), ("ContainersReady", fine),
                                ("PodScheduled", "True"))
        ]  # fmt: skip
        if self._disrupted and phase in ("Failed", "Succeeded"):
            phase = "Failed"
            conditions.append(
                {
                    "type": "DisruptionTarget",
                    "status": "True",
                    "lastTransitionTime": now(),
                    "reason": "TerminationByKubelet",
                    "message": "its node is shutting down",
                }
            )
        return {
            "phase": phase,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "hostIP": ADDRESS,
            "startTime": started,
            "conditions": conditions,
            "containerStatuses": states,
        }

    def _report(self, status: Object) -> None:
        while not self._gone.is_set():
            try:
                pod = self._api.patch_status(self._path, status)
                # The watch may be behind: a pod that nobody here ends stays until its node's 40 s are over.
                self._deleted |= bool(pod and "deletionTimestamp" in pod["metadata"])
                return
            except ApiServerError as error:
                if error.status != requests.codes.unavailable:
                    raise
                time.sleep(_RETRY_S)


def _is_ready(container: Object, address: str) -> bool:
    """Return True if a container's readiness probe succeeds; a container without one is ready while it
    runs.
    """
    probe = (container.get("readinessProbe") or {}).get("httpGet")
    if probe is None:
        return True
    try:
        url = f"http://{address}:{probe['port']}{probe.get('path', '/')}"
        return requests.get(url, timeout=1).ok
    except requests.RequestException:
        return False


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To the container's own first process, which is the child of nsenter's and unshare's."""
    try:
        if number is signal.SIGKILL:
            os.killpg(process.pid, number)
            return
        for task in Path(f"/proc/{process.pid}/task").glob("*/children"):
            for child in task.read_text().split():
                os.kill(int(child), number)
    except (ProcessLookupError, FileNotFoundError):
        pass
