"""A command of the tree in this folder, with all of Google's names led to a lab's front door.

python -m tests.proofs.as_person PORT MODULE ARGUMENT…
"""

from __future__ import annotations

import runpy
import sys
from typing import Any
from urllib.parse import urlsplit

import google.auth
import requests
from requests.adapters import HTTPAdapter

from infra.google import client

_SEND = HTTPAdapter.send


def main() -> None:
    """Log in by the file of application default credentials, quota project included, and run the module."""
    port, module = sys.argv[1:3]

    def send(adapter: HTTPAdapter, request: requests.PreparedRequest, *arguments: Any, **more: Any) -> Any:
        parts = urlsplit(str(request.url))
        if parts.netloc.endswith(".googleapis.com"):
            request.headers["Host"] = parts.netloc
            request.url = parts._replace(scheme="http", netloc=f"127.0.0.1:{port}").geturl()
        return _SEND(adapter, request, *arguments, **more)

    HTTPAdapter.send = send  # type: ignore[method-assign]
    scope = ["https://www.googleapis.com/auth/cloud-platform"]
    client.Credentials = lambda _: google.auth.default(scopes=scope)[0]  # type: ignore[assignment,misc]
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
