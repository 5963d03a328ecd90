"""Cloud Storage's JSON API as a host needs it before and beside its job, with retries.

`STORAGE_EMULATOR_HOST` selects another server, as for google-cloud-storage.
Protocol: cloud.google.com/storage/docs/json_api/v1/objects.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from workload.host.errors import StorageError
from workload.host.metadata import access_token

_JSON = "application/json"
_BOUNDARY = "between-the-parts"
_TIMEOUT_S = 20.0
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0


class Bucket:
    """A bucket, accessed with the token of this host's service account.

    A request that fails transiently (no connection, 408, 429, 5xx) is repeated for
    `patience_s` seconds with growing pauses; then `StorageError`.
    """

    def __init__(self, name: str, *, patience_s: float = 60.0) -> None:
        self.name = name
        self._patience_s = patience_s
        server = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com")
        self._server = server if "://" in server else f"http://{server}"
        self._token: str | None = None

    def read(self, name: str) -> bytes | None:
        """Return the content of `name`; None if it doesn't exist."""
        return self._send("GET", f"/storage/v1/b/{self.name}/o/{_quote(name)}?alt=media")

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object stored as `name`; None if it doesn't exist."""
        body = self.read(name)
        if body is None:
            return None
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise StorageError(f"gs://{self.name}/{name} is not a JSON object: delete it and boot again")
        return value

    def write_json(self, name: str, value: dict[str, Any], metadata: Mapping[str, str] | None = None) -> None:
        """Store `value` as `name`, replacing any object; `metadata` is shown by listings."""
        path = f"/upload/storage/v1/b/{self.name}/o?uploadType=multipart&name={_quote(name)}"
        about = {"contentType": _JSON, **({"metadata": dict(metadata)} if metadata else {})}
        # JSON on one line can't contain the boundary.
        parts = (f"--{_BOUNDARY}\r\nContent-Type: {_JSON}\r\n\r\n{json.dumps(x)}\r\n" for x in (about, value))
        body = f"{''.join(parts)}--{_BOUNDARY}--\r\n".encode()
        if self._send("POST", path, body, f"multipart/related; boundary={_BOUNDARY}") is None:
            raise StorageError(f"gs://{self.name}: no such bucket")

    def generations(self, prefix: str) -> dict[str, str]:
        """Return object name → generation for every object below `prefix`."""
        generations: dict[str, str] = {}
        page = ""
        while True:
            query = f"prefix={_quote(prefix)}&fields=items(name,generation),nextPageToken{page}"
            body = self._send("GET", f"/storage/v1/b/{self.name}/o?{query}")
            if body is None:
                raise StorageError(f"gs://{self.name}: no such bucket")
            reply = json.loads(body)
            generations |= {item["name"]: str(item["generation"]) for item in reply.get("items", ())}
            if not reply.get("nextPageToken"):
                return generations
            page = f"&pageToken={_quote(reply['nextPageToken'])}"

    def _send(self, method: str, path: str, body: bytes | None = None, kind: str = _JSON) -> bytes | None:
        """Return the reply's body, None for 404."""
        give_up = time.monotonic() + self._patience_s
        pause_s = _FIRST_PAUSE_S
        renewed = False
        while True:
            try:
                return self._send_once(method, path, body, kind)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                if error.code == 401 and not renewed:
                    self._token, renewed = None, True
                    continue
                output = f"HTTP {error.code}: {error.read(500).decode(errors='replace')}"
                passing = error.code in _TRANSIENT
            except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
                output, passing = str(error), True
            if not passing or time.monotonic() + pause_s > give_up:
                raise StorageError(f"{method} {self._server}{path}: {output}")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _send_once(self, method: str, path: str, body: bytes | None, kind: str) -> bytes:
        if self._token is None:
            self._token = access_token()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        request = urllib.request.Request(self._server + path, data=body, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
            content: bytes = reply.read()
            return content


def _quote(text: str) -> str:
    return urllib.parse.quote(text, safe="")
