"""The IAM Credentials API, as far as Google's client libraries call it by themselves."""

from __future__ import annotations

from collections.abc import Mapping

from rehearsal.cloud.service import Call, JsonObject, Method


class CredentialsService:
    """Where an account's tokens may be used from; google-auth asks in the background, unbidden."""

    api = "iamcredentials"

    def methods(self) -> Mapping[str, Method]:
        """By method id."""
        return {"iamcredentials.projects.serviceAccounts.getAllowedLocations": Method(self._allowed)}

    async def _allowed(self, call: Call) -> JsonObject:
        """No boundary: from everywhere, which Google encodes as 0x0."""
        return {"locations": [], "encodedLocations": "0x0"}
