"""Requests to the URLs of Run services.

https://cloud.google.com/run/docs/authenticating/service-to-service. Only functions answer
(rehearsal/cloud/services/functions/runner.py). Where a function's ingress is internal, Cloud Scheduler and
Eventarc reach it, and nobody else: https://cloud.google.com/run/docs/securing/ingress.
"""

from __future__ import annotations

import re

from aiohttp import web

from rehearsal.cloud.core.errors import ApiError, NotEmulatedError
from rehearsal.cloud.core.runtime import INTERNAL_HEADER, Functions
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import Iam

_INVOKE = "run.routes.invoke"
_HOST = re.compile(r".*\.(?:run\.app|cloudfunctions\.net)")
_NOT_AUTHENTICATED = (
    "The request was not authenticated. Either allow unauthenticated invocations or set the proper "
    "Authorization header. Read more at https://cloud.google.com/run/docs/securing/authenticating"
)

# Names no permission: https://cloud.google.com/run/docs/troubleshooting#unauthorized-client
_FORBIDDEN = (
    "<html><head><title>403 Forbidden</title></head><body><h1>Error: Forbidden</h1><h2>Your client does not "
    "have permission to get URL <code>{}</code> from this server.</h2></body></html>"
)

_NOT_FOUND = (
    "<html><head><title>404 Page not found</title></head><body><h1>Error: Page not found</h1></body></html>"
)


class Invocations:
    """Serves requests to the hosts of Run services; a `Site` of the front door."""

    method_id = "run.services.invoke"

    def __init__(self, world: World, iam: Iam, functions: Functions | None, secret: str) -> None:
        self._world, self._iam, self._functions, self._secret = world, iam, functions, secret

    def owns(self, host: str) -> bool:
        """Return True for the host of a service."""
        return _HOST.fullmatch(host) is not None

    def principal(self, host: str, path: str, bearer: str) -> str:
        """Return the account of an identity token for the service's address or its path; "" if invalid."""
        plain = path.partition("?")[0]
        audiences = {f"https://{host}{plain[:end]}" for end in range(len(plain) + 1)} if bearer else ()
        tokens = (self._iam.find_token(bearer, audience) for audience in audiences)
        return next((token.principal for token in tokens if token), "")

    async def serve(self, request: web.Request, host: str, principal: str) -> web.StreamResponse:
        """Return the service's answer; ApiError 404 for no service, 401 and 403 without permission."""
        path = request.raw_path
        name = next((name for name in self._world.directory if self._is(name, host, path)), None)
        if name is None:
            raise ApiError(
                404, "NOT_FOUND", f"The requested URL was not found: there is no service at {host}."
            )
        function = name.replace("/services/", "/functions/")
        config = self._world.directory.get(function, {}).get("serviceConfig", {})
        internal = request.headers.get(INTERNAL_HEADER) == self._secret
        if config.get("ingressSettings", "ALLOW_ALL") != "ALLOW_ALL" and not internal:
            return web.Response(status=404, text=_NOT_FOUND, content_type="text/html")
        if not self._iam.holds(principal, _INVOKE, name):
            sent = "Authorization" in request.headers
            if sent and not principal:
                raise ApiError(401, "UNAUTHENTICATED", "The access token could not be verified.")
            if not sent:
                raise ApiError(403, "PERMISSION_DENIED", _NOT_AUTHENTICATED)
            return web.Response(status=403, text=_FORBIDDEN.format(path), content_type="text/html")
        if self._functions is None or function not in self._world.directory:
            raise NotEmulatedError(f"A request to the service {name}")
        prefix = "/" + name.rpartition("/")[2]
        plain = path.removeprefix(prefix) or "/" if host.endswith(".cloudfunctions.net") else path
        return await self._functions.call(function, request, plain)

    def _is(self, name: str, host: str, path: str) -> bool:
        """Return True if a service has this address: its own, or its function's."""
        body = self._world.directory[name]
        if "/services/" not in name or "uri" not in body:
            return False
        if host.endswith(".cloudfunctions.net"):
            function = self._world.directory.get(name.replace("/services/", "/functions/"), {})
            first = path.partition("?")[0].split("/")[1]
            return bool(function.get("url") == f"https://{host}/{first}")
        return bool(body["uri"] == f"https://{host}")
