"""The real CLI, whose language host and plugins are in this process: nothing is started or imported again.

A command costs 0.6 s of processor time. The engine, its states and its gRPC are real;
of a plugin the CLI starts a shell that asks here for a server of its own and prints that server's port.
"""

from __future__ import annotations

import logging
import os
import runpy
import shutil
import socket
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import grpc  # type: ignore[import-untyped]
from pulumi import dynamic
from pulumi.automation._server import LanguageServer
from pulumi.runtime import run_in_stack
from pulumi.runtime._callbacks import _CallbackServicer
from pulumi.runtime._grpc_settings import _GRPC_CHANNEL_OPTIONS
from pulumi.runtime.proto import language_pb2_grpc, provider_pb2_grpc

from infra.core import upstream
from infra.settings.sources import ROOT
from rehearsal.providers.gcp.install import PACKAGES
from rehearsal.providers.gcp.provider import Provider
from rehearsal.providers.plugin.server import Servicer
from tests.limits import HANG_S

_DYNAMIC = "pulumi-python"
_AT_ONCE = 64
_SCRIPT = """#!/bin/bash
exec 3<>/dev/tcp/127.0.0.1/{port}
echo {name} >&3
read -r plugin <&3
echo "$plugin"
exec cat <&3 >/dev/null
"""
_CLI = """#!/bin/sh
case " $* " in *" preview "*|*" up "*) set -- "$@" --client 127.0.0.1:{port} ;; esac
exec {program} "$@"
"""


class Warm:
    """Servers of this process, and scripts in a folder that lead the CLI to them.

    `environment`: what the program and the plugins find in theirs, as long as this is open; `home`: the
    CLI's, with its plugins. `path`: of commands that are to use them.
    """

    def __init__(self, folder: Path, home: Path, environment: Mapping[str, str]) -> None:
        self._environment = mock.patch.dict(os.environ, environment)
        self._environment.start()
        self._run = mock.patch("pulumi.automation._server.run_in_stack", _run)
        self._run.start()
        self._host = grpc.server(ThreadPoolExecutor(_AT_ONCE))
        language_pb2_grpc.add_LanguageRuntimeServicer_to_server(LanguageServer(_program), self._host)
        host = self._host.add_insecure_port("127.0.0.1:0")
        self._host.start()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()
        folder.mkdir()
        program, port = shutil.which("pulumi", path=environment["PATH"]), self._listener.getsockname()[1]
        for place, text in (
            (PACKAGES["gcp"].place(home), _SCRIPT.format(name="gcp", port=port)),
            (folder / f"pulumi-resource-{_DYNAMIC}", _SCRIPT.format(name=_DYNAMIC, port=port)),
            (folder / "pulumi", _CLI.format(program=program, port=host)),
        ):
            place.write_text(text)
            place.chmod(0o755)
        self.path = f"{folder}{os.pathsep}{environment['PATH']}"

    def close(self) -> None:
        """End the servers, and give the environment back."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._host.stop(None).wait(HANG_S)
        self._run.stop()
        self._environment.stop()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=_serve, args=(connection,), daemon=True).start()


def _serve(connection: socket.socket) -> None:
    """Serve one plugin, as long as the script that asks for it lives."""
    with connection, connection.makefile("rw") as lines:
        provider = None
        if lines.readline().strip() != _DYNAMIC:
            provider = Provider(poll_s=0.02, window_s=0.02, first_backoff_s=0.02)
        server = grpc.server(ThreadPoolExecutor(_AT_ONCE))
        servicer = Servicer(provider) if provider else _Dynamic()
        provider_pb2_grpc.add_ResourceProviderServicer_to_server(servicer, server)
        lines.write(f"{server.add_insecure_port('127.0.0.1:0')}\n")
        server.start()
        lines.flush()
        lines.readline()
        if provider:
            provider.cancel()
        server.stop(None)


async def _run(program: Callable[[], None]) -> None:
    """Run a program; one that fails leaves a server of callbacks behind, whose port a later one may get."""
    try:
        await run_in_stack(program)
    finally:
        await _CallbackServicer.shutdown()


def _program() -> None:
    upstream._stack.cache_clear()
    runpy.run_path(str(ROOT / "__main__.py"), run_name="__main__")


def _dynamic() -> Callable[[], Any]:
    """Return Pulumi's servicer of dynamic providers, whose module serves at its import."""
    source = Path(dynamic.__file__).with_name("__main__.py").read_text().rstrip()
    names: dict[str, Any] = {"__name__": _DYNAMIC}
    exec(source.removesuffix("\nmain()"), names)
    servicer: Callable[[], Any] = names["DynamicResourceProviderServicer"]
    return servicer


def _apart(servicer: Any) -> Callable[[], Any]:
    """Return a servicer of this process's own: ours replace what formats a traceback, for good."""
    known = traceback.format_exc

    class Apart(servicer):  # type: ignore[misc]
        def Diff(self, request: Any, context: Any) -> Any:  # noqa: N802 (gRPC's name)
            traceback.format_exc = known
            return super().Diff(request, context)

        def Delete(self, request: Any, context: Any) -> Any:  # noqa: N802
            traceback.format_exc = known
            return super().Delete(request, context)

    return Apart


# Or a command whose port an ended one had would meet that one's refused connections.
_GRPC_CHANNEL_OPTIONS.append(("grpc.use_local_subchannel_pool", 1))
_Dynamic = _apart(_dynamic())
logging.getLogger("grpc").setLevel(logging.CRITICAL)  # for what a dynamic provider doesn't implement
