"""The gRPC side of Cloud Storage: bucket layouts and folders, by the handlers of the JSON API.

gcsfuse and gcsfs ask `google.storage.control.v2.StorageControl` for a bucket's layout before anything
else, and gcsfuse works on folders by it; gcsfs repeats a request without an answer for a minute, at every
operation. All ask on the port of the JSON API, so one TLS listener has to serve both kinds of client:
`HttpOrGrpcSite`.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc  # type: ignore[import-untyped]
from aiohttp import web
from google.cloud.storage_control_v2 import types
from google.longrunning import operations_pb2  # type: ignore[import-untyped]
from google.protobuf import empty_pb2, json_format
from google.protobuf.message import Message

from rehearsal.cloud.core.errors import JsonObject, bad_request
from rehearsal.cloud.core.service import Answer, Call, Method
from rehearsal.cloud.door.doorway import Doorway
from rehearsal.cloud.door.grpcdoor import CALLER, GrpcDoor
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.services.storage.store import bucket_resource

_CONTROL, _OPERATIONS = "google.storage.control.v2.StorageControl", "google.longrunning.Operations"
# Service → its methods: the method of the JSON API that does the same, and the type of the request.
_METHODS: dict[str, dict[str, tuple[str, Any]]] = {
    _CONTROL: {
        "CreateFolder": ("storage.folders.insert", types.CreateFolderRequest.pb()),
        "DeleteFolder": ("storage.folders.delete", types.DeleteFolderRequest.pb()),
        "GetFolder": ("storage.folders.get", types.GetFolderRequest.pb()),
        "GetStorageLayout": ("storage.buckets.getStorageLayout", types.GetStorageLayoutRequest.pb()),
        "ListFolders": ("storage.folders.list", types.ListFoldersRequest.pb()),
        "RenameFolder": ("storage.folders.rename", types.RenameFolderRequest.pb()),
    },
    _OPERATIONS: {"GetOperation": ("storage.buckets.operations.get", operations_pb2.GetOperationRequest)},
}
_NAME = re.compile(
    r"projects/_/buckets/(?P<bucket>[^/]+)"
    r"(?:/folders/(?P<folder>.+)|/operations/(?P<operationId>.+)|/storageLayout)?"
)


class StorageControl:
    """A gRPC server on a Unix socket at `path`; what `_METHODS` lacks is UNIMPLEMENTED."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        iam: Iam,
        path: Path,
        doorway: Doorway,
        handlers: Sequence[Any] = (),
    ) -> None:
        """`handlers`: generic handlers of other APIs' services."""
        self._methods = methods
        self._iam = iam
        self._door = GrpcDoor("storage.googleapis.com", iam, doorway)
        self.path = path
        self._handlers = handlers
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Begin to answer."""
        self._server = grpc.aio.server(interceptors=(self._door,))
        for service, methods in _METHODS.items():
            handlers = {
                name: grpc.unary_unary_rpc_method_handler(
                    partial(self._serve, method_id),
                    request_deserializer=request.FromString,
                    response_serializer=lambda message: message.SerializeToString(),
                )
                for name, (method_id, request) in methods.items()
            }
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self._server.add_generic_rpc_handlers(tuple(self._handlers))
        self._server.add_insecure_port(f"unix:{self.path}")
        await self._server.start()

    async def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            await self._server.stop(grace=None)

    async def _serve(self, method_id: str, request: Message, _context: Any) -> Message:
        call, method = _call(method_id, request, CALLER.get()), self._methods[method_id]
        if method.permission is not None and method.resource is not None:
            self._iam.require(call.principal, method.permission, method.resource(call))
        return _message(await method.handler(call))


def _call(method_id: str, request: Message, principal: str) -> Call:
    """Return the request in terms of the JSON API."""
    sent = json_format.MessageToDict(request)
    match = _NAME.fullmatch(sent.pop("name", "") or sent.pop("parent", ""))
    if match is None:
        raise bad_request("Invalid resource name.")
    path = {key: value for key, value in match.groupdict().items() if value}
    path |= {"sourceFolder": path.get("folder", ""), "destinationFolder": sent.get("destinationFolderId", "")}
    query = sent | {
        "startOffset": sent.get("lexicographicStart"),
        "endOffset": sent.get("lexicographicEnd"),
        **{f"ifSource{key[2:]}": value for key, value in sent.items() if key.startswith("if")},
    }
    body = {"name": sent.get("folderId", "")}
    return Call("storage", "v1", method_id, path, query, body, principal, cast(web.Request, None))


def _message(answer: Answer) -> Message:
    """Return the answer of the JSON API as the message that gRPC clients get."""
    if not isinstance(answer, dict):
        return empty_pb2.Empty()
    kind = answer.get("kind", "").removeprefix("storage#")
    if kind == "operation":
        operation = operations_pb2.Operation(name=answer["name"], done=answer["done"])
        operation.metadata.Pack(_parsed(types.RenameFolderMetadata, answer["metadata"]))
        if "response" in answer:
            operation.response.Pack(_folder(answer["response"]))
        return cast(Message, operation)
    if kind == "folders":
        folders = [_folder(item) for item in answer.get("items", ())]
        token = answer.get("nextPageToken", "")
        return cast(Message, types.ListFoldersResponse.pb()(folders=folders, next_page_token=token))
    if kind == "folder":
        return _folder(answer)
    name = f"{bucket_resource(answer['bucket'])}/storageLayout"
    return _parsed(types.StorageLayout, answer | {"name": name})


def _folder(body: JsonObject) -> Message:
    name = f"{bucket_resource(body['bucket'])}/folders/{body['name']}"
    return _parsed(types.Folder, body | {"name": name})


def _parsed(kind: Any, body: JsonObject) -> Message:
    fields = {key: value for key, value in body.items() if not key.startswith("@")}
    return cast(Message, json_format.ParseDict(fields, kind.pb()(), ignore_unknown_fields=True))


class HttpOrGrpcSite(web.BaseSite):
    """A TLS `web.TCPSite` that relays gRPC connections to a gRPC server's Unix socket.

    gRPC clients offer h2 alone in ALPN; all others offer http/1.1 too, or nothing, and get HTTP/1.1 because
    it is the protocol preferred here.
    """

    def __init__(
        self, runner: web.AppRunner, host: str, port: int, context: ssl.SSLContext, grpc_path: Path
    ) -> None:
        super().__init__(runner, ssl_context=context)
        context.set_alpn_protocols(["http/1.1", "h2"])
        self._address = host, port
        self._grpc_path = grpc_path

    @property
    def name(self) -> str:
        """For messages."""
        return f"https://{self._address[0]}:{self._address[1]}"

    async def start(self) -> None:
        """Listen."""
        await super().start()
        self._server = await asyncio.get_running_loop().create_server(
            self._protocol, *self._address, ssl=self._ssl_context, backlog=self._backlog
        )

    def _protocol(self) -> asyncio.Protocol:
        return _Switch(self._runner.server, self._relay)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(str(self._grpc_path))
        await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))


class _Switch(asyncio.Protocol):
    """The first protocol of a connection: hands it over once the handshake has said which kind it is."""

    def __init__(self, http: Any, relay: Callable[..., Awaitable[None]]) -> None:
        self._http = http
        self._relay = relay

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        tls: ssl.SSLObject = transport.get_extra_info("ssl_object")
        if tls.selected_alpn_protocol() == "h2":
            chosen: Any = asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._relay)
        else:
            chosen = self._http()
        transport.set_protocol(chosen)
        chosen.connection_made(transport)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # the other direction ends too, by the close below
    finally:
        writer.close()
