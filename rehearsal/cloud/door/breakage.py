"""Broken answers by fault rules: none at all, or half of one."""

from __future__ import annotations

from aiohttp import web

from rehearsal.cloud.door.faults import Fault

# The fault of the request that is being answered, for `break_stream`.
FAULT = web.RequestKey("fault", Fault)


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
