"""A server on loopback that answers the API server's requests in JSON, in threads."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rehearsal.authority import Pair

ADDRESS = "127.0.0.1"


class JsonServer:
    """Calls `answer` with the path and the body of a POST; it returns a status and a body."""

    def __init__(self, answer: Callable[[str, Any], tuple[int, Any]]):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, result = answer(self.path, body)
                content = json.dumps(result).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Log nothing: requests are frequent."""

        self._server = ThreadingHTTPServer((ADDRESS, 0), Handler)
        self.place = f"{ADDRESS}:{self._server.server_port}"

    def start(self, pair: Pair | None = None) -> None:
        """Answer from now on, by TLS with a certificate."""
        if pair:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pair.certificate, pair.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
