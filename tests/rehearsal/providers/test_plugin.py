"""The plugin as an executable: where it is installed, how it ends, and its side of the gRPC protocol."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from rehearsal.providers.gcp.__main__ import main
from rehearsal.providers.gcp.install import PACKAGES, is_standin
from rehearsal.providers.gcp.provider import Provider
from rehearsal.providers.plugin.errors import CreatedButError, StandInError
from rehearsal.providers.plugin.server import Servicer
from rehearsal.providers.plugin.values import UNKNOWN, from_struct, to_struct
from tests.limits import HANG_S

ROOT = Path(__file__).parents[3]
NETWORK = "urn:pulumi:dev::demo::demo:Parent$gcp:compute/network:Network::net"
ENGINE = """
import os, subprocess, sys, time
line = [sys.executable, "-m", "rehearsal.providers.gcp", "serve", "gcp"]
plugin = subprocess.Popen(line, stdout=subprocess.PIPE)
if sys.argv[1] == "serving":
    plugin.stdout.readline()
    time.sleep(2)
    assert plugin.poll() is None, "it ended while its engine lived"
print(plugin.pid, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("moment", ["starting", "serving"])
def test_it_ends_with_the_engine_that_started_it(moment: str) -> None:
    engine = [sys.executable, "-c", ENGINE, moment]
    ended = subprocess.run(engine, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=HANG_S)
    plugin = Path("/proc") / ended.stdout.strip()
    for _ in range(6000):
        if not plugin.exists() or "\nState:\tZ" in (plugin / "status").read_text():
            return
        time.sleep(0.1)
    os.kill(int(plugin.name), signal.SIGKILL)
    raise AssertionError("it continues without its engine")


@pytest.mark.parametrize("name", PACKAGES)
def test_install_names_the_sdks_version_and_leaves_an_official_plugin_alone(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["install", "--pulumi-home", str(tmp_path)]) == 0
    executable = PACKAGES[name].place(tmp_path)
    assert executable.parent.name == f"resource-{name}-v{version(f'pulumi-{name}')}"
    assert is_standin(executable)
    assert os.access(executable, os.X_OK)
    assert sys.executable in executable.read_text()
    executable.write_bytes(b"\x7fELF official")
    assert main(["install", "--pulumi-home", str(tmp_path)]) == 1
    assert f"the official {name} plugin is installed there" in capsys.readouterr().err
    others = [other for other in PACKAGES if other != name]
    assert main(["install", "--pulumi-home", str(tmp_path), *others]) == 0
    assert executable.read_bytes() == b"\x7fELF official"


@pytest.fixture(name="provider")
def _provider() -> Provider:
    return Provider()


@pytest.fixture(name="engine")
def _engine(provider: Provider) -> Iterator[Any]:
    """Calls as the engine makes them, over gRPC."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(Servicer(provider), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield provider_pb2_grpc.ResourceProviderStub(channel)
    server.stop(None).wait()


def test_inputs_are_checked_compared_and_previewed_over_grpc(engine: Any) -> None:
    settings = to_struct({"project": "p", "colour": "red"})
    (failure,) = engine.CheckConfig(provider_pb2.CheckRequest(news=settings)).failures
    assert failure.reason == "the stand-in doesn't know the provider setting 'colour'"
    engine.Configure(provider_pb2.ConfigureRequest(variables={"gcp:config:project": "p"}))
    wrong = provider_pb2.CheckRequest(urn=NETWORK, news=to_struct({"mtu": "large"}), randomSeed=b"s")
    (failure,) = engine.Check(wrong).failures
    assert failure.reason.startswith("gcp:compute/network:Network resource 'net' has a problem: expected int")
    news = engine.Check(provider_pb2.CheckRequest(urn=NETWORK, news=to_struct({"mtu": 8896}))).inputs
    planned = engine.Create(provider_pb2.CreateRequest(urn=NETWORK, properties=news, preview=True))
    outputs = from_struct(planned.properties)
    assert (planned.id, outputs["project"], outputs["selfLink"]) == ("", "p", UNKNOWN)
    olds = to_struct({**outputs, "mtu": 1460, "networkProfile": "old", "description": "old"})
    request = provider_pb2.DiffRequest(
        id="n", urn=NETWORK, olds=olds, news=news, old_inputs=news, ignoreChanges=["description"]
    )
    diff = engine.Diff(request)
    assert (diff.changes, list(diff.replaces)) == (provider_pb2.DiffResponse.DIFF_SOME, ["networkProfile"])
    assert diff.detailedDiff["mtu"].kind == provider_pb2.PropertyDiff.UPDATE
    assert diff.detailedDiff["networkProfile"].kind == provider_pb2.PropertyDiff.DELETE_REPLACE


def test_errors_reach_the_engine_as_one_sentence_and_what_is_half_made_with_its_outputs(
    engine: Any, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = NETWORK.replace("compute/network:Network", "redis/instance:Instance")
    with pytest.raises(grpc.RpcError) as refused:
        engine.Check(provider_pb2.CheckRequest(urn=unknown))
    assert refused.value.details().startswith("the stand-in doesn't know the resource type 'gcp:redis/")
    assert "Traceback" not in refused.value.details()

    def fails(error: Exception) -> Any:
        def create(*_: Any, **__: Any) -> Any:
            raise error

        monkeypatch.setattr(provider, "create", create)
        with pytest.raises(grpc.RpcError) as failed:
            engine.Create(provider_pb2.CreateRequest(urn=NETWORK))
        return failed.value

    assert fails(StandInError("no login", fix="gcloud auth login")).details() == "no login\ngcloud auth login"
    half = fails(CreatedButError("it can't be read", "the-id", {"name": "net"}))
    (packed,) = Status.FromString(dict(half.trailing_metadata())["grpc-status-details-bin"]).details
    detail = provider_pb2.ErrorResourceInitFailed()
    assert packed.Unpack(detail)
    assert (detail.id, from_struct(detail.properties), list(detail.reasons)) == (
        "the-id", {"name": "net"}, ["it can't be read"],
    )  # fmt: skip


def test_a_read_gives_inputs_back_and_a_resource_that_is_gone_has_no_id(
    engine: Any, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[Any] = [
        {"id": "n", "name": "net", "mtu": 8896},
        {"id": "n", "name": "net", "mtu": 8896},
        None,
    ]
    monkeypatch.setattr(provider, "read", lambda *_: known.pop(0))
    state, inputs = to_struct({"name": "net"}), to_struct({"name": "net", "description": "given"})
    refreshed = engine.Read(provider_pb2.ReadRequest(id="n", urn=NETWORK, properties=state, inputs=inputs))
    assert from_struct(refreshed.inputs) == {"name": "net", "description": "given"}
    imported = engine.Read(provider_pb2.ReadRequest(id="n", urn=NETWORK, inputs=inputs))
    assert from_struct(imported.inputs) == {"name": "net", "mtu": 8896, "__defaults": []}
    assert engine.Read(provider_pb2.ReadRequest(id="n", urn=NETWORK, properties=state)).id == ""
