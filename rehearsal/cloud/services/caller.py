"""Requests of Google's own services: events and scheduled jobs.

They go through the front door like all others: with a token of their account, past fault rules and into the
log. A function whose ingress is internal tells them from others by a header. A cluster's DNS name leads to
its API server. No other host has an address here.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import ssl
from collections.abc import Callable

import aiohttp
from yarl import URL

from rehearsal.cloud.core.errors import ApiError
from rehearsal.cloud.core.runtime import INTERNAL_HEADER, OIDC, HttpRequest, Reply
from rehearsal.cloud.iam.iam import Iam

_HOST = re.compile(r"[a-z0-9.-]+\.(?:googleapis\.com|run\.app|cloudfunctions\.net)")
_CLUSTER = re.compile(r"gke-[a-z0-9-]+\.[a-z0-9-]+\.gke\.goog")


class Caller:
    """Sends requests to `address`, host and port of the front door once it is open; HTTPS with `tls`."""

    def __init__(
        self, iam: Iam, address: Callable[[], tuple[str, int]], tls: ssl.SSLContext | None = None
    ) -> None:
        self._iam, self._address, self._tls = iam, address, tls
        self.secret = secrets.token_hex()
        self._session: aiohttp.ClientSession | None = None

    async def send(self, request: HttpRequest, account: str) -> Reply:
        """Return the answer, as `account` where the request has `auth`.

        Raises:
            ConnectionError: nothing answers.
            TimeoutError: no answer within `timeout_s` real seconds.
            PermissionError: the account doesn't exist.
        """
        url = URL(request.url)
        cluster = url.host and _CLUSTER.fullmatch(url.host)
        if url.host is None or not (cluster or _HOST.fullmatch(url.host)):
            raise ConnectionError(f"there is no host {url.host} in the emulated cloud")
        headers = {**request.headers, "Host": url.host, INTERNAL_HEADER: self.secret}
        if request.auth:
            headers["Authorization"] = f"Bearer {self._token(request, account)}"
        host, port = (url.host, 443) if cluster else self._address()
        target = URL.build(
            scheme="https" if self._tls else "http", host=host, port=port, path=url.raw_path,
            query_string=url.raw_query_string, encoded=True,
        )  # fmt: skip
        if self._session is None:
            self._session = aiohttp.ClientSession(
                auto_decompress=True, timeout=aiohttp.ClientTimeout(total=None)
            )
        try:
            async with asyncio.timeout(request.timeout_s):
                async with self._session.request(
                    request.method, target, headers=headers, data=request.body, allow_redirects=False,
                    ssl=self._tls or False, server_hostname=url.host if self._tls else None,
                ) as answer:  # fmt: skip
                    return Reply(answer.status, dict(answer.headers), await answer.read())
        except aiohttp.ClientError as error:
            raise ConnectionError(f"{url.host}: {error or type(error).__name__}") from None

    def _token(self, request: HttpRequest, account: str) -> str:
        try:
            audience = request.audience if request.auth == OIDC else ""
            return self._iam.mint(account, audience=audience).value
        except ApiError as error:
            raise PermissionError(error.message) from None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            with contextlib.suppress(aiohttp.ClientError):
                await self._session.close()
