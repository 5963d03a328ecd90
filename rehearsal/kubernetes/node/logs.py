"""Output of containers: written down with the time of each line, and served as by the kubelet.

`kubectl logs` calls the API server, and that the kubelet: GET /containerLogs/NAMESPACE/POD/CONTAINER
https://kubernetes.io/docs/concepts/cluster-administration/logging/
"""

from __future__ import annotations

import datetime
import shutil
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO
from urllib.parse import parse_qs, urlsplit

from rehearsal.authority import Authority
from rehearsal.kubernetes.errors import KubernetesError
from rehearsal.kubernetes.plane.control_plane import ADDRESS

PORT = 10250
_POLL_S = 0.1
Find = Callable[[str, str, str], tuple[Path, Callable[[], bool]]]
"""The file of a container, by namespace, pod and name, and whether it still runs. Raises KubernetesError."""


def record(output: IO[bytes], path: Path) -> None:
    """Copy lines to a file, each behind the time when it came, until the last writer is gone."""
    with path.open("ab") as file:
        for line in output:
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
            file.write(f"{now} ".encode() + line.rstrip(b"\n") + b"\n")
            file.flush()


def text(path: Path) -> str:
    """Return the output without the times."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return "".join(line.partition(" ")[2] + "\n" for line in lines)


def keep(clusters: Path, into: Path) -> None:
    """Copy the output of every container of any pod so far, as HOSTNAME.POD'S-UID.CONTAINER.log."""
    for output in clusters.glob("*/agent/pods/*/*.log"):
        host = (output.parent / "hosts").read_text().split()[-1]
        into.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(output, into / f"{host}.{output.parent.name}.{output.name}")


class LogServer:
    """The part of the kubelet's server that logs are read from, for all nodes."""

    def __init__(self, folder: Path, find: Find):
        pair = Authority(folder / "kubelet", "kubelet CA").server("kubelet", ["kubelet"], [ADDRESS])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"  # an answer ends with its connection

            def do_GET(self) -> None:
                _answer(self, find)

            def log_message(self, *_: object) -> None:
                """Log nothing: the API server has a log of its own."""

        self._server = ThreadingHTTPServer((ADDRESS, PORT), Handler)
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()


def _answer(request: BaseHTTPRequestHandler, find: Find) -> None:
    url = urlsplit(request.path)
    query = {key: values[-1] for key, values in parse_qs(url.query).items()}
    parts = url.path.strip("/").split("/")
    try:
        if len(parts) != 4 or parts[0] != "containerLogs" or query.get("previous") == "true":
            raise KubernetesError(f"{request.path} isn't emulated")
        path, runs = find(*parts[1:])
    except KubernetesError as error:
        request.send_error(404, str(error))
        return
    request.send_response(200)
    request.send_header("Content-Type", "text/plain")
    request.end_headers()
    try:
        for line in _selected(path, runs, query):
            request.wfile.write(line.encode() + b"\n")
    except OSError:
        return  # the reader has gone


def _selected(path: Path, runs: Callable[[], bool], query: dict[str, str]) -> Iterator[str]:
    since = query.get("sinceTime", "")
    if "sinceSeconds" in query:
        moment = datetime.datetime.now(datetime.UTC) - datetime.timedelta(
            seconds=float(query["sinceSeconds"])
        )
        since = moment.strftime("%Y-%m-%dT%H:%M:%S")
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    first = max(0, len(lines) - int(query["tailLines"])) if "tailLines" in query else 0
    for line in _following(path, runs, query.get("follow") == "true"):
        if first:
            first -= 1
            continue
        stamp, _, words = line.partition(" ")
        if stamp >= since.rstrip("Z"):
            yield line if query.get("timestamps") == "true" else words


def _following(path: Path, runs: Callable[[], bool], follow: bool) -> Iterator[str]:
    while follow and not path.exists() and runs():
        time.sleep(_POLL_S)
    if not path.exists():
        return
    with path.open(errors="replace") as file:
        rest = ""
        while True:
            alive = runs()
            while line := file.readline():
                rest += line
                if rest.endswith("\n"):
                    yield rest[:-1]
                    rest = ""
            if not follow or not alive:
                return
            time.sleep(_POLL_S)
