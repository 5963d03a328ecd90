"""A container image of this machine's own Python, pushed to the emulated Artifact Registry.

Its layer has the interpreter, its library and the shared libraries that both load, at the paths that they
have here. Nothing else: no shell, no packages. https://github.com/opencontainers/image-spec
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import re
import ssl
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from google.auth.transport.requests import Request
from google.oauth2.credentials import Credentials

from rehearsal.scenario.scene import Scene
from rehearsal.scenario.step import step
from rehearsal.world import person

FILE = "image.txt"
_OCI = "application/vnd.oci.image"
_LEFT_OUT = re.compile(
    "__pycache__|config-.*|(dist|site)-packages|ensurepip|idlelib|lib2to3|test|tests|tkinter|turtledemo"
)
_LOADED = re.compile(r"(?:=> )?(/\S+) \(0x")

Send = Callable[[str, str, bytes, Mapping[str, str]], Mapping[str, str]]
"""Sends a method to a URL or path with a body and headers; returns the answer's headers."""


@step("push {name}, an image of this machine's Python")
def image(scene: Scene, name: str) -> None:
    """Push an image with this machine's Python; its name with the digest is in the file image.txt."""
    login = Credentials.from_authorized_user_file(person.credentials("owner"))  # type: ignore[no-untyped-call]
    login.refresh(Request())
    host, _, path = name.partition("/")

    def send(method: str, where: str, body: bytes, headers: Mapping[str, str]) -> Mapping[str, str]:
        authorized = {**headers, "Authorization": f"Bearer {login.token}"}
        request = urllib.request.Request(f"https://{host}{where}", body, authorized, method=method)
        with urllib.request.urlopen(request, context=ssl.create_default_context()) as answer:
            return dict(answer.headers)

    layer = python_layer()
    digest = push(send, path, layer)
    (scene.program / FILE).write_text(f"{name}@{digest}")
    scene.note.text = f"{len(layer) >> 20} MiB, {digest[:19]}"


def push(send: Send, path: str, layer: bytes) -> str:
    """Push an image of one layer, a tar file, to a repository's `path`; return its digest."""
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": _part(send, path, f"{_OCI}.config.v1+json", json.dumps(config).encode()),
        "layers": [_part(send, path, f"{_OCI}.layer.v1.tar+gzip", gzip.compress(layer, 1, mtime=0))],
    }
    content = json.dumps(manifest).encode()
    headers = {"Content-Type": manifest["mediaType"]}
    send("PUT", f"/v2/{path}/manifests/{_digest(content)}", content, headers)
    return _digest(content)


def _part(send: Send, path: str, media_type: str, content: bytes) -> dict[str, Any]:
    """Upload a blob and return its description."""
    begun = send("POST", f"/v2/{path}/blobs/uploads/", b"", {})
    headers = {"Content-Type": "application/octet-stream"}
    send("PUT", f"{begun['Location']}?digest={_digest(content)}", content, headers)
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}


def python_layer() -> bytes:
    """Return a tar file with this machine's Python, which is `python` on the image's PATH."""
    program = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    library = Path(sysconfig.get_path("stdlib"))
    loaded = [program, *library.glob("lib-dynload/*.so")]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=True) as tar:
        for path in [program, *sorted(_shared(loaded))]:
            tar.add(path, path.relative_to("/"))
        tar.add(library, library.relative_to("/"), filter=_kept)
        link = tarfile.TarInfo("usr/local/bin/python")
        link.type, link.linkname = tarfile.SYMTYPE, str(program)
        tar.addfile(link)
    return packed.getvalue()


def _shared(programs: Iterable[Path]) -> set[Path]:
    """Return the shared libraries that programs load, and the loader."""
    shown = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    return {Path(name) for name in _LOADED.findall(shown)}


def _kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if _LEFT_OUT.fullmatch(Path(entry.name).name) else entry


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
