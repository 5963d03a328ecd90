"""Google's OAuth endpoints, as far as `authorized_user` credentials need them.

Only userinfo has a discovery document; the others are described in
https://developers.google.com/identity/protocols/oauth2 and answer errors in RFC 6749's form.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from google_facts.scopes import LOGIN
from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.service import Answer, Call, Method
from rehearsal.cloud.iam.iam import Iam, Token

# What `gcloud auth login` is granted; a refresh may name fewer.
_GRANTED = (
    *LOGIN,
    "openid",
    *(
        f"https://www.googleapis.com/auth/{name}"
        for name in ("appengine.admin", "compute", "sqlservice.login")
    ),
    "https://www.googleapis.com/auth/accounts.reauth",
)


class OAuth:
    """Exchange of refresh tokens (`refresh_tokens`: token → account), and the account of an access token."""

    api = "oauth2"
    versions = ("v2",)

    def __init__(self, iam: Iam, refresh_tokens: Mapping[str, str]) -> None:
        self._iam = iam
        self._refresh_tokens = dict(refresh_tokens)

    def methods(self) -> Mapping[str, Method]:
        """Methods by id."""
        return {
            "oauth2.userinfo.get": Method(self._userinfo_call),
            "oauth2.userinfo.v2.me.get": Method(self._userinfo_call),
        }

    def endpoints(self) -> dict[tuple[str, str], Callable[[web.Request], Awaitable[Answer]]]:
        """Return handlers of what no discovery document describes, by (host, path)."""
        www, oauth2 = "www.googleapis.com", "oauth2.googleapis.com"
        return {
            (oauth2, "/token"): self._token,
            (www, "/oauth2/v3/token"): self._token,  # tensorstore's
            (www, "/oauth2/v4/token"): self._token,
            (oauth2, "/tokeninfo"): self._tokeninfo,
            (www, "/oauth2/v1/tokeninfo"): self._tokeninfo,
            (www, "/oauth2/v2/tokeninfo"): self._tokeninfo,
            (www, "/oauth2/v3/tokeninfo"): self._tokeninfo,
            ("openidconnect.googleapis.com", "/v1/userinfo"): self._userinfo,
            (www, "/oauth2/v1/userinfo"): self._userinfo,
            (www, "/oauth2/v3/userinfo"): self._userinfo,
        }

    async def _token(self, request: web.Request) -> Answer:
        form = await request.post()
        grant = str(form.get("grant_type", ""))
        if grant != "refresh_token":
            return _oauth_error("unsupported_grant_type", f"Invalid grant_type: {grant}")
        offered = str(form.get("refresh_token", ""))
        account = next(
            (who for token, who in self._refresh_tokens.items() if hmac.compare_digest(token, offered)), None
        )
        if account is None:
            return _oauth_error("invalid_grant", "Bad Request")
        scopes = str(form.get("scope") or "").split() or list(_GRANTED)
        if not set(scopes) <= set(_GRANTED):
            return _oauth_error("invalid_scope", "Some requested scopes were invalid.")
        token = self._iam.mint(account, scopes=scopes)
        return {
            "access_token": token.value,
            "expires_in": self._iam.left_s(token),
            "scope": " ".join(token.scopes),
            "token_type": "Bearer",
        }

    async def _tokeninfo(self, request: web.Request) -> Answer:
        form = await request.post()
        offered = request.query.get("access_token") or str(form.get("access_token", ""))
        token = self._iam.find_token(offered)
        if token is None:
            return _oauth_error("invalid_token", "Invalid Value")
        return {
            "sub": account_id(token.principal),
            "scope": " ".join(token.scopes),
            "exp": str(int(time.time()) + self._iam.left_s(token)),
            "expires_in": str(self._iam.left_s(token)),
            "email": token.principal,
            "email_verified": "true",
            "access_type": "offline",
        }

    async def _userinfo(self, request: web.Request) -> Answer:
        _, _, offered = request.headers.get("Authorization", "").partition(" ")
        token: Token | None = self._iam.find_token(offered)
        if token is None:
            raise ApiError(401, "UNAUTHENTICATED", "Request had invalid authentication credentials.")
        return {"sub": account_id(token.principal), "email": token.principal, "email_verified": True}

    async def _userinfo_call(self, call: Call) -> JsonObject:
        return {"id": account_id(call.principal), "email": call.principal, "verified_email": True}


def account_id(principal: str) -> str:
    """Return the numeric id of an account: 21 digits that stay the same for the same address."""
    return str(10**20 + int.from_bytes(hashlib.sha256(principal.encode()).digest()[:8], "big"))


def _oauth_error(error: str, description: str) -> web.Response:
    return web.json_response({"error": error, "error_description": description}, status=400)
