"""The gRPC side of Cloud Storage, as far as clients of flat buckets need it: GetStorageLayout.

gcsfuse and gcsfs ask `google.storage.control.v2.StorageControl` for a bucket's layout before anything
else; gcsfs repeats a question that nobody answers for a minute, at every operation. Both ask on the port of
the JSON API, so one TLS listener has to serve both kinds of client: `HttpOrGrpcSite`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
from aiohttp import web
from google.cloud.storage_control_v2.types import GetStorageLayoutRequest, StorageLayout

from rehearsal.cloud.doorway import Doorway
from rehearsal.cloud.grpcdoor import CALLER, GrpcDoor
from rehearsal.cloud.iam import Iam
from rehearsal.cloud.storage.store import Store, bucket_resource

_SERVICE = "google.storage.control.v2.StorageControl"


class StorageControl:
    """A gRPC server on a Unix socket at `path`."""

    def __init__(self, store: Store, iam: Iam, path: Path, doorway: Doorway) -> None:
        self._store = store
        self._iam = iam
        self._door = GrpcDoor("storage.googleapis.com", iam, doorway)
        self.path = path
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Begin to answer."""
        layout = grpc.unary_unary_rpc_method_handler(
            self._get_storage_layout,
            request_deserializer=GetStorageLayoutRequest.deserialize,
            response_serializer=StorageLayout.serialize,
        )
        handler = grpc.method_handlers_generic_handler(_SERVICE, {"GetStorageLayout": layout})
        self._server = grpc.aio.server(interceptors=(self._door,))
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix:{self.path}")
        await self._server.start()

    async def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            await self._server.stop(grace=None)

    async def _get_storage_layout(self, request: GetStorageLayoutRequest, _context: Any) -> StorageLayout:
        # projects/_/buckets/B/storageLayout
        name = request.name.removeprefix(bucket_resource("")).removesuffix("/storageLayout")
        bucket = self._store.bucket(name)
        self._iam.require(CALLER.get(), "storage.objects.list", bucket_resource(name))
        hierarchical = bool(bucket.get("hierarchicalNamespace", {}).get("enabled"))
        return StorageLayout(
            name=request.name,
            location=bucket["location"],
            location_type=bucket["locationType"],
            hierarchical_namespace=StorageLayout.HierarchicalNamespace(enabled=hierarchical),
        )


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
