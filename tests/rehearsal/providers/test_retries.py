"""Lost connections and passing refusals: which requests are sent again, and which fail at once."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from rehearsal.providers.gcp.api import Client
from rehearsal.providers.gcp.provider import Provider
from rehearsal.providers.gcp.settings import Settings
from rehearsal.providers.gcp.types.tpu import TPU
from rehearsal.providers.plugin.errors import ProviderApiError, StandInError
from tests.limits import HANG_S

DONE = {"name": "projects/p/locations/us-east5-b/operations/1", "done": True}
NODE = "projects/p/locations/us-east5-b/nodes/vm"
NOT_READY = [{"reason": "resourceNotReady"}]
VM = "gcp:tpu/v2Vm:V2Vm"
INPUTS = {"name": "vm", "acceleratorType": "v6e-4", "runtimeVersion": "v2-alpha-tpuv6e", "zone": "us-east5-b"}


def refusal(status: int, message: str, **more: Any) -> tuple[int, Any]:
    return status, {"error": {"code": status, "message": message, **more}}


@dataclass
class Line:
    """A server on loopback whose connections end as the script says; `requests` are their methods.

    An entry is an answer (status, JSON), or how the connection ends: "ended" cleanly, "reset", or in the
    "middle" of an answer.
    """

    script: list[Any]
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while words := stream.readline().split():
                length = 0
                while (line := stream.readline().strip().lower()) != b"":
                    if line.startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                stream.read(length)
                self.requests.append(words[0].decode())
                match self.script.pop(0):
                    case "ended":
                        return
                    case "reset":
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        return
                    case "middle":
                        connection.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"name":')
                        return
                    case status, body:
                        content = json.dumps(body).encode()
                        head = f"HTTP/1.1 {status} Said\r\ncontent-length: {len(content)}\r\n\r\n"
                        connection.sendall(head.encode() + content)


@pytest.fixture
def line() -> Iterator[Callable[..., Line]]:
    listeners: list[socket.socket] = []

    def make(*script: Any) -> Line:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        made = Line(list(script), url=f"http://127.0.0.1:{listener.getsockname()[1]}/")
        threading.Thread(target=made.serve, args=(listener,), daemon=True).start()
        return made

    yield make
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def settings(line: Line) -> Settings:
    return Settings(project="p", access_token="t", endpoints={"tpuV2CustomEndpoint": line.url})


def client(line: Line) -> Client:
    return Client(settings(line), first_backoff_s=0.001)


def provider(line: Line) -> Provider:
    made = Provider(poll_s=0.001, first_backoff_s=0.001)
    made.configure(settings(line))
    return made


@pytest.mark.parametrize("method", ["POST", "PATCH", "DELETE"])
@pytest.mark.parametrize("first", [[], [(200, {})]], ids=["new connection", "used connection"])
def test_a_change_whose_connection_ends_is_not_sent_again(
    line: Callable[..., Line], method: str, first: list[Any]
) -> None:
    played = line(*first, "ended")
    sender = client(played)
    for _ in first:
        sender.send(TPU, "GET", NODE)
    with pytest.raises(ProviderApiError, match=f'^{method.capitalize()} "{played.url}{NODE}.*": EOF$'):
        sender.send(TPU, method, NODE)
    assert played.requests == ["GET"] * len(first) + [method]


def test_a_reading_is_sent_again_once_where_the_connection_was_used_before(line: Callable[..., Line]) -> None:
    played = line("ended", (200, {"a": 1}), "ended", (200, {"a": 2}), "ended", "ended")
    sender = client(played)
    with pytest.raises(ProviderApiError, match="EOF"):
        sender.send(TPU, "GET", NODE)  # the first of all, such as an import's
    assert sender.send(TPU, "GET", NODE) == {"a": 1}
    assert sender.send(TPU, "GET", NODE) == {"a": 2}
    with pytest.raises(ProviderApiError, match="EOF"):
        sender.send(TPU, "GET", NODE)
    assert played.script == []


def test_a_node_whose_creation_or_deletion_got_no_answer_fails_at_once_and_is_no_resource(
    line: Callable[..., Line],
) -> None:
    played = line("ended", "ended")
    inputs = Provider().check(VM, INPUTS, {}, "vm", b"").inputs
    with pytest.raises(StandInError, match=r'^Error creating V2Vm: Post ".*nodeId=vm": EOF$') as failed:
        provider(played).create(VM, inputs)
    assert type(failed.value) is StandInError, "CreatedButError would leave it in the state"
    with pytest.raises(StandInError, match=r'Delete ".*": EOF$'):
        provider(played).delete(VM, NODE, {**INPUTS, "project": "p"})
    assert played.requests == ["POST", "DELETE"]


@pytest.mark.parametrize(
    "passing",
    [
        "reset",
        refusal(429, "slow down"),
        refusal(500, "try again"),
        refusal(502, "try again"),
        refusal(503, "try again"),
        refusal(400, "The resource 'projects/p/global/networks/n' is not ready", errors=NOT_READY),
        refusal(400, "The resource 'projects/p/regions/r/subnetworks/s' is not ready", errors=NOT_READY),
        refusal(
            403, "Quota exceeded for quota metric 'Reads' and limit 'Reads per minute' of service 'compute'"
        ),
        refusal(403, "too many", details=[{"reason": "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED"}]),
        refusal(409, "busy", errors=[{"reason": "operationInProgress"}]),
    ],
    ids=lambda item: item if isinstance(item, str) else str(item[0]),
)
def test_what_passes_is_sent_again(line: Callable[..., Line], passing: Any) -> None:
    played = line(passing, passing, (200, DONE))
    assert client(played).send(TPU, "POST", NODE, body={}) == DONE
    assert played.requests == ["POST"] * 3


@pytest.mark.parametrize(
    ("lasting", "message"),
    [
        ("middle", "unexpected EOF"),
        (
            refusal(400, "The resource 'projects/p/zones/z/disks/d' is not ready", errors=NOT_READY),
            "Error 400",
        ),
        (refusal(403, "Permission 'tpu.nodes.create' denied"), "Error 403"),
        (
            refusal(403, "Quota exceeded for quota metric 'Chips' and limit 'Chips per zone' of service"),
            "403",
        ),
        (refusal(409, "Resource 'vm' already exists"), "Error 409"),
        (refusal(504, "deadline"), "Error 504"),
    ],
    ids=lambda item: item if isinstance(item, str) else str(item[0]),
)
def test_what_does_not_pass_fails_at_once(line: Callable[..., Line], lasting: Any, message: str) -> None:
    played = line(lasting)
    with pytest.raises(ProviderApiError, match=message):
        client(played).send(TPU, "POST", NODE, body={})
    assert played.requests == ["POST"]


def test_a_timeout_is_tried_again(line: Callable[..., Line], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rehearsal.providers.gcp.api.HTTP_TIMEOUT_S", 0.2)
    silent = socket.create_server(("127.0.0.1", 0))
    with silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        sender = client(Line([], url=url))
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(sender.send(TPU, "GET", NODE)))
        thread.start()
        unanswered, _ = silent.accept()
        connection, _ = silent.accept()
        with unanswered, connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            thread.join(HANG_S)
    assert answers == [{}]


def test_a_new_account_is_waited_for_until_it_shows(line: Callable[..., Line]) -> None:
    """Google answers 404 for a while, or 403, which hides whether an account exists."""
    account = {
        "email": "workers@p.iam.gserviceaccount.com",
        "name": "projects/p/serviceAccounts/w",
        "etag": "e",
    }
    played = line((200, account), refusal(403, "denied"), refusal(404, "none"), *[(200, account)] * 3)
    made = Provider(poll_s=0.001)
    made.configure(Settings(project="p", access_token="t", endpoints={"iamBetaCustomEndpoint": played.url}))
    _, outputs = made.create("gcp:serviceaccount/account:Account", {"accountId": "workers"})
    assert outputs["email"] == account["email"]
    assert played.requests == ["POST", *["GET"] * 5]
