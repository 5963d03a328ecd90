"""The IAM Credentials API: tokens of service accounts, and the look-up that client libraries make."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from rehearsal.cloud.core.errors import JsonObject, NotEmulatedError, bad_request
from rehearsal.cloud.core.service import Call, Method
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import TOKEN_LIFETIME_S, Iam


class CredentialsService:
    """Impersonation (https://cloud.google.com/iam/docs/service-account-impersonation), without delegates."""

    api = "iamcredentials"
    versions = ("v1",)

    def __init__(self, world: World, iam: Iam) -> None:
        self._world = world
        self._iam = iam

    def methods(self) -> Mapping[str, Method]:
        """Methods by id."""
        collection = "iamcredentials.projects.serviceAccounts"
        return {
            f"{collection}.getAllowedLocations": Method(self._allowed),
            f"{collection}.generateAccessToken": Method(
                self._generate, "iam.serviceAccounts.getAccessToken", self._account
            ),
        }

    def _account(self, call: Call) -> str:
        return f"projects/{self._world.project}/serviceAccounts/{call.path['name'].rpartition('/')[2]}"

    async def _generate(self, call: Call) -> JsonObject:
        """Return a token; its `expireTime` is on the real clock, as clients time it."""
        sent = call.body or {}
        lifetime = re.fullmatch(r"(\d+)s", sent.get("lifetime") or f"{TOKEN_LIFETIME_S:.0f}s")
        if sent.get("delegates"):
            raise NotEmulatedError("A chain of delegates")
        if not sent.get("scope") or not lifetime:
            raise bad_request("A scope is required, and a lifetime is such as 3600s.")
        if int(lifetime[1]) > TOKEN_LIFETIME_S:
            raise bad_request(f"The lifetime is more than {TOKEN_LIFETIME_S:.0f} s.")
        account = self._account(call).rpartition("/")[2]
        token = self._iam.mint(account, int(lifetime[1]), scopes=sent["scope"])
        ends = time.gmtime(time.time() + self._iam.left_s(token))
        return {"accessToken": token.value, "expireTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", ends)}

    async def _allowed(self, call: Call) -> JsonObject:
        """Return no boundary: all locations, which Google encodes as 0x0."""
        return {"locations": [], "encodedLocations": "0x0"}
