"""The common part of all servers: fault rules before a request, the log after it, errors.

The doors are the APIs' front door, the metadata server and the gRPC side of Cloud Storage.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from aiohttp import web

from rehearsal.cloud.core.errors import ApiError, NotEmulatedError
from rehearsal.cloud.core.operations import planned_failure
from rehearsal.cloud.core.world import World
from rehearsal.cloud.door.faults import Fault, Faults, LostError
from rehearsal.cloud.door.requestlog import LoggedRequest, RequestLog

T = TypeVar("T")
# The fault of the request that is being answered, for `break_stream`.
FAULT = web.RequestKey("fault", Fault)


@dataclass
class Passage:
    """A request on its way through a door.

    `refused`: it fails a rehearsal, since it should never have been sent, or because the mistake is ours.
    """

    method_id: str
    http_method: str
    host: str
    path: str
    principal: str
    address: str
    query: str = ""
    started: float = field(default_factory=time.monotonic)
    fault: Fault | None = None
    status: int = 0
    reason: str = ""
    message: str = ""
    validated: bool = False
    refused: bool = False

    def refuse(self, reason: str) -> None:
        """Mark a request that fails a rehearsal."""
        self.reason, self.refused = reason, True


class Doorway:
    """Faults and the log, for one door."""

    def __init__(self, world: World, faults: Faults, requests: RequestLog) -> None:
        self._world = world
        self._faults = faults
        self._requests = requests

    async def http(
        self,
        request: web.Request,
        passage: Passage,
        serve: Callable[[], Awaitable[web.StreamResponse]],
        refuse: Callable[[ApiError, Fault | None], web.Response],
    ) -> web.StreamResponse:
        """Answer a request over HTTP; `refuse` renders errors."""

        async def served() -> web.StreamResponse:
            fault = passage.fault
            if fault is None:
                return await serve()
            request[FAULT] = fault
            response = await serve()
            if fault.truncated and isinstance(response, web.Response) and not response.prepared:
                return await send_half(request, response)
            return response

        try:
            return await self.answer(passage, served, lambda: abort(request))
        except ApiError as error:
            return refuse(error, passage.fault)
        except ConnectionError:
            return web.Response(status=499)

    async def answer(
        self, passage: Passage, serve: Callable[[], Awaitable[T]], cut: Callable[[], ConnectionError]
    ) -> T:
        """Return the answer of `serve`, or act on a fault rule; `cut` closes the connection.

        Raises ApiError, or ConnectionError if no client is left to answer.
        """
        try:
            answer = await self._disturbed(passage, serve, cut)
            passage.status = getattr(answer, "status", 200)
            return answer
        except ApiError as error:
            if isinstance(error, NotEmulatedError):
                passage.refuse("unimplemented")
            passage.reason = passage.reason or error.reason
            passage.status, passage.message = error.code, error.message
            raise
        except ConnectionError:
            passage.reason = passage.reason or "connection-lost"
            raise
        except LostError:
            raise
        except asyncio.CancelledError:
            passage.reason = "cancelled"
            raise
        except Exception as error:
            self._world.blame(f"{passage.http_method} {passage.host}{passage.path}", error)
            passage.refuse("crashed")
            passage.status, passage.message = 500, repr(error)
            raise ApiError(500, "INTERNAL", "Internal error encountered.") from error
        finally:
            self._log(passage)

    async def _disturbed(
        self, passage: Passage, serve: Callable[[], Awaitable[T]], cut: Callable[[], ConnectionError]
    ) -> T:
        about = (passage.method_id, passage.host, passage.path, passage.principal, passage.query)
        fault = self._faults.inject(*about)
        if fault is None:
            return await serve()
        passage.fault, passage.reason = fault, fault.rule_id
        if fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        if fault.error is not None:
            raise fault.error
        if fault.lost:
            raise LostError(fault.rule_id)
        if fault.reset:
            raise cut()
        planned = planned_failure.set(fault.operation_error)
        try:
            answer = await serve()
        except ApiError:
            if fault.lost_answer:
                raise cut() from None
            raise
        finally:
            if planned_failure.get() is not None:  # no operation began that could have failed
                self._faults.missed(fault)
            planned_failure.reset(planned)
        if fault.lost_answer:
            raise cut()
        return answer

    def _log(self, passage: Passage) -> None:
        self._requests.add(
            LoggedRequest(
                time=self._world.clock.rfc3339(),
                method_id=passage.method_id,
                http_method=passage.http_method,
                host=passage.host,
                path=f"{passage.path}?{passage.query}" if passage.query else passage.path,
                principal=passage.principal,
                address=passage.address,
                status=passage.status,
                reason=passage.reason,
                message=passage.message,
                duration_s=round(time.monotonic() - passage.started, 6),
            ),
            validated=passage.validated,
            refused=passage.refused,
        )


def abort(request: web.Request) -> ConnectionError:
    """Close the connection at once; the caller raises the result. TLS clients see it end (`EOF`), without
    the alert that should come first, and not a reset: there is nothing unread that would make TCP send one.
    """
    if request.transport is not None:
        request.transport.abort()
    return ConnectionResetError("closed by a fault rule")


async def send_half(request: web.Request, response: web.Response) -> web.StreamResponse:
    """Announce the whole body, send half of it, close."""
    del request[FAULT]  # done here, and not again when the stream is prepared
    body = response.body if isinstance(response.body, bytes) else b""
    stream = web.StreamResponse(status=response.status, headers=response.headers)
    stream.content_length = len(body)
    await stream.prepare(request)
    await stream.write(body[: len(body) // 2])
    if request.transport is not None:
        request.transport.close()
    return stream


async def break_stream(request: web.Request, response: web.StreamResponse) -> None:
    """Signal handler for answers that a service streams itself: cut at the start, or after half a piece."""
    fault = request.get(FAULT)
    if fault is None or isinstance(response, web.Response):
        return
    if fault.lost_answer:
        raise abort(request)
    if fault.truncated:
        whole = response.write

        async def write_half(data: bytes | bytearray | memoryview) -> None:
            await whole(data[: len(data) // 2])
            if request.transport is not None:
                request.transport.close()
            raise ConnectionResetError("truncated by a fault rule")

        response.write = write_half  # type: ignore[method-assign]
