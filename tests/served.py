"""HTTP servers on loopback, made of a function of the request."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Received:
    """A request. `target` is the path with its query."""

    method: str
    target: str
    headers: Message
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.target).query)


@dataclass(frozen=True)
class Reply:
    """An answer; a body that isn't bytes is sent as JSON. `headers` may have another Content-Length."""

    status: int = 200
    body: Any = b""
    headers: Iterable[tuple[str, str]] = ()


Answer = Callable[[Received], Reply | bytes]
"""Bytes are all that is sent before the connection ends."""


def _handler(answer: Answer) -> type[BaseHTTPRequestHandler]:
    """Return the handler of a server that answers every method by a function."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _received(self) -> Received:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Transfer-Encoding") == "chunked":
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            return Received(self.command, self.path, self.headers, body)

        def do_GET(self) -> None:
            reply = answer(self._received())
            if isinstance(reply, bytes):
                self.close_connection = True
                self.wfile.write(reply)
                return
            content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            headers = [*reply.headers]
            if "Content-Length" not in dict(headers):
                headers.append(("Content-Length", str(len(content))))
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextmanager
def serving(answer: Answer, listener: socket.socket | None = None) -> Iterator[str]:
    """Serve on a listening socket, or a free port of loopback; yield the address, HOST:PORT."""
    listener = listener or socket.create_server(("127.0.0.1", 0))
    with ThreadingHTTPServer(("", 0), _handler(answer), bind_and_activate=False) as server:
        server.socket.close()
        server.socket = listener
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield "{}:{}".format(*listener.getsockname())
        finally:
            server.shutdown()
