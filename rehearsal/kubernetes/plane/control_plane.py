"""etcd, the API server, the controller manager and the scheduler, in the network namespace of the caller.

The API server reaches webhooks and extension APIs by the addresses of their endpoints
(`--enable-aggregator-routing`), so pods' addresses must be on this machine's network: see `agent.py`.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from rehearsal.authority import Authority, Pair
from rehearsal.hosts.commands import run
from rehearsal.kubernetes.errors import ApiServerError, KubernetesError
from rehearsal.kubernetes.plane.api import Api
from rehearsal.kubernetes.plane.programs import program

BRIDGE = "k8s0"
# Endpoints may not be loopback addresses, so the API server has one on a bridge.
ADDRESS, NETWORK_BITS = "172.20.0.1", 16
PORT = 443  # of a cluster's DNS endpoint; the emulated cloud has the same one at other addresses
_SERVICES, _FIRST_SERVICE = "10.96.0.0/16", "10.96.0.1"
_ETCD, _ETCD_PEERS = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 10.0
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
_SERVICE = "kubernetes.default.svc.cluster.local"
_REVIEW_TTL = "1s"  # how long an answer of the webhooks holds
_NAMES = (*(_SERVICE.rsplit(".", dots)[0] for dots in (4, 3, 2)), _SERVICE, "localhost")


class ControlPlane:
    """Control plane of a cluster; `start` returns when the API server answers and pods can be created."""

    def __init__(self, folder: Path, public: Pair | None = None, reviews: str = ""):
        """`public`: a certificate for other names of the API server, such as a cluster's DNS endpoint.

        `reviews`: the URL of a server that authenticates tokens and authorizes requests (reviews.py).
        """
        self.folder, self._public, self._reviews = folder, public, reviews
        self.url = f"https://{ADDRESS}:{PORT}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lines: dict[str, list[str]] = {}
        self.ready_s = 0.0

    def start(self) -> None:
        """Make the bridge and the keys, then start the four programs. Raises KubernetesError."""
        begun = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        run(["ip", "link", "add", BRIDGE, "type", "bridge", "forward_delay", "0"])
        run(["ip", "address", "add", f"{ADDRESS}/{NETWORK_BITS}", "dev", BRIDGE])
        run(["ip", "link", "set", BRIDGE, "up"])
        self._make_keys()
        self._run("etcd", [
            "--data-dir", str(self.folder / "etcd"), "--unsafe-no-fsync", "--log-level", "warn",
            "--listen-client-urls", _ETCD, "--advertise-client-urls", _ETCD,
            "--listen-peer-urls", _ETCD_PEERS, "--initial-advertise-peer-urls", _ETCD_PEERS,
            "--initial-cluster", f"default={_ETCD_PEERS}",
        ])  # fmt: skip
        self._run("kube-apiserver", self._api_server())
        self._wait(lambda: bool(self.api.request("GET", "/readyz")), "the API server")
        self._run("kube-controller-manager", [
            *self._config("controller-manager"), f"--service-account-private-key-file={self._key}",
            f"--root-ca-file={self.authority.ca}", "--use-service-account-credentials",
            "--leader-elect=false",
            # The default is 20 a second, and a Job of 4 pods takes 11. What GKE's has isn't known.
            "--kube-api-qps=100", "--kube-api-burst=200",
        ])  # fmt: skip
        self._run("kube-scheduler", [*self._config("scheduler"), "--leader-elect=false"])
        # The first pods of a Job are refused without it, and retried seconds later.
        self._wait(
            lambda: self.api.get("v1", "ServiceAccount", "default", "default") is not None,
            "the service account `default`",
        )
        self.ready_s = time.monotonic() - begun

    def stop(self) -> None:
        """End the programs and take the bridge away."""
        for process in reversed(self._processes.values()):
            process.terminate()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for process in self._processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        subprocess.run(["ip", "link", "delete", BRIDGE], check=False, capture_output=True)

    def restart(self, name: str) -> None:
        """SIGKILL one of the programs, then start it again."""
        self._processes[name].kill()
        self._processes[name].wait()
        self._run(name, self._lines[name])
        self._wait(lambda: bool(self.api.request("GET", "/readyz")), name)

    def memory_mib(self) -> dict[str, float]:
        """Resident memory by program."""
        sizes = {}
        for name, process in self._processes.items():
            status = Path(f"/proc/{process.pid}/status").read_text()
            sizes[name] = int(status.partition("VmRSS:")[2].split()[0]) / 1024
        return sizes

    # Keys

    def _make_keys(self) -> None:
        self.authority = Authority(self.folder / "keys", "Kubernetes CA")
        sign = self.authority.client
        self._server = self.authority.server("apiserver", _NAMES, ["127.0.0.1", ADDRESS, _FIRST_SERVICE])
        self._front_proxy = sign("front-proxy", "front-proxy-client")
        self.admin = sign("admin", "admin", ["system:masters"])
        self._users = {
            "controller-manager": sign("controller-manager", "system:kube-controller-manager"),
            "scheduler": sign("scheduler", "system:kube-scheduler"),
        }
        self._key = self.folder / "keys" / "service-accounts.key"
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._key.touch(mode=0o600)
        self._key.write_bytes(key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ))  # fmt: skip
        self.api = self.client(self.admin)
        for user, pair in {**self._users, "admin": self.admin}.items():
            self.write_kubeconfig(self.folder / f"{user}.kubeconfig", pair)

    def client(self, pair: Pair) -> Api:
        """Return a connection as the user of a certificate."""
        return Api(self.url, str(self.authority.ca), pair)

    def write_kubeconfig(self, path: Path, pair: Pair) -> None:
        """Write a kubeconfig with one cluster and one user; JSON is YAML."""
        cluster = {"server": self.url, "certificate-authority": str(self.authority.ca)}
        user = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
        write_kubeconfig(path, cluster, user)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "admin.kubeconfig"

    # Programs

    def _api_server(self) -> list[str]:
        ca, server, proxy = self.authority.ca, self._server, self._front_proxy
        flags: dict[str, object] = {
            "etcd-servers": _ETCD, "secure-port": PORT, "bind-address": ADDRESS,
            "tls-cert-file": server.certificate, "tls-private-key-file": server.key, "client-ca-file": ca,
            "service-account-key-file": self._key, "service-account-signing-key-file": self._key,
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-cluster-ip-range": _SERVICES,
            "enable-aggregator-routing": "true", "allow-privileged": "true",
            "requestheader-client-ca-file": ca, "requestheader-allowed-names": "front-proxy-client",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": proxy.certificate, "proxy-client-key-file": proxy.key,
        }  # fmt: skip
        if self._public:
            flags["tls-sni-cert-key"] = f"{self._public.certificate},{self._public.key}"
        flags |= self._asking() if self._reviews else {"authorization-mode": "RBAC"}
        return [f"--{name}={value}" for name, value in flags.items()]

    def _asking(self) -> Mapping[str, object]:
        """Tokens are reviewed by the webhook; so is access, which RBAC may give as well.

        The webhook comes first, since it refuses who may not use the DNS endpoint, whatever RBAC grants.
        """
        files = {name: self._write_webhook(name) for name in ("tokens", "access")}
        webhook = {
            "authorizedTTL": _REVIEW_TTL, "unauthorizedTTL": _REVIEW_TTL, "timeout": "10s",
            "subjectAccessReviewVersion": "v1", "matchConditionSubjectAccessReviewVersion": "v1",
            "failurePolicy": "NoOpinion",
            "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": str(files["access"])},
            # Kubernetes' own identities are RBAC's alone.
            "matchConditions": [{"expression": "!request.user.startsWith('system:')"}],
        }  # fmt: skip
        authorizers = [
            {"type": "Webhook", "name": "iam", "webhook": webhook},
            {"type": "RBAC", "name": "rbac"},
        ]
        path = self.folder / "authorization.yaml"
        path.write_text(json.dumps({
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration",
            "authorizers": authorizers,
        }))  # fmt: skip
        return {
            "authentication-token-webhook-config-file": files["tokens"],
            "authentication-token-webhook-version": "v1",
            "authentication-token-webhook-cache-ttl": _REVIEW_TTL,
            "authorization-config": path,
        }

    def _write_webhook(self, name: str) -> Path:
        path = self.folder / f"{name}.kubeconfig"
        write_kubeconfig(path, {"server": f"{self._reviews}/{name}"}, {})
        return path

    def _config(self, user: str) -> list[str]:
        file = self.folder / f"{user}.kubeconfig"
        return [f"--{name}={file}" for name in
                ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")]  # fmt: skip

    def _run(self, name: str, arguments: list[str]) -> None:
        self._lines[name] = arguments
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*DIES_WITH_US, program(name), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )

    def _wait(self, is_there: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise KubernetesError(f"{name} ended with status {process.returncode}",
                                          f"read {self.folder / name}.log")  # fmt: skip
            try:
                if is_there():
                    return
            except ApiServerError:
                pass
            if time.monotonic() > deadline:
                raise KubernetesError(f"{what} isn't there after {_START_TIMEOUT_S:.0f} s")
            time.sleep(0.1)


def write_kubeconfig(path: Path, cluster: Mapping[str, str], user: Mapping[str, object]) -> None:
    """Write a kubeconfig with a client's certificate."""
    path.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "rehearsal",
        "clusters": [{"name": "rehearsal", "cluster": cluster}],
        "users": [{"name": "rehearsal", "user": user}],
        "contexts": [{"name": "rehearsal", "context": {"cluster": "rehearsal", "user": "rehearsal"}}],
    }))  # fmt: skip
