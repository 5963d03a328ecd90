"""The gRPC door: every call is logged, disturbed and refused as at the others.

Handlers raise ApiError; the caller's account is in `CALLER` while one runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import grpc  # type: ignore[import-untyped]

from rehearsal.cloud.core.errors import ApiError, NotEmulatedError
from rehearsal.cloud.core.operations import RPC_CODES
from rehearsal.cloud.door.doorway import Doorway, Passage
from rehearsal.cloud.iam.iam import Iam

CALLER: ContextVar[str] = ContextVar("caller")
_CODES = {code.value[0]: code for code in grpc.StatusCode}
# Of a method's package; the other methods go to the door's own host.
_HOSTS = {"/google.cloud.kms.": "cloudkms.googleapis.com"}
_BAD_TOKEN = ApiError(401, "UNAUTHENTICATED", "Request had invalid authentication credentials.")


class GrpcDoor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Stands before all unary methods of a server, and before those that it lacks."""

    def __init__(self, host: str, iam: Iam, doorway: Doorway) -> None:
        self._host = host
        self._iam = iam
        self._doorway = doorway

    async def intercept_service(self, continuation: Callable[..., Awaitable[Any]], details: Any) -> Any:
        """Wrap the method's handler in this door."""
        handler = await continuation(details)
        metadata = {str(key).lower(): str(value) for key, value in details.invocation_metadata or ()}
        token = self._iam.find_token(metadata.get("authorization", "").removeprefix("Bearer "))

        async def behave(request: Any, context: Any) -> Any:
            method_id = details.method.removeprefix("/")
            principal = token.principal if token else ""
            host = next(
                (own for prefix, own in _HOSTS.items() if details.method.startswith(prefix)), self._host
            )
            passage = Passage(method_id, "POST", host, details.method, principal, "")

            async def serve() -> Any:
                if handler is None:
                    raise NotEmulatedError(method_id)
                if token is None:
                    raise _BAD_TOKEN
                CALLER.set(token.principal)
                answer = await handler.unary_unary(request, context)
                passage.validated = True
                if passage.fault is not None and passage.fault.truncated:
                    raise _cut()
                return answer

            try:
                return await self._doorway.answer(passage, serve, _cut)
            except ApiError as error:
                code = _CODES[RPC_CODES.get(error.status, RPC_CODES["UNKNOWN"])]
                await context.abort(code, error.message)
            except ConnectionError as error:  # as clients report a connection that ends
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

        return grpc.unary_unary_rpc_method_handler(
            behave,
            request_deserializer=handler.request_deserializer if handler else None,
            response_serializer=handler.response_serializer if handler else None,
        )


def _cut() -> ConnectionError:
    return ConnectionResetError("recvmsg:Connection reset by peer")
