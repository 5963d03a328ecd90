"""Preconditions: https://cloud.google.com/storage/docs/request-preconditions. ETags come in headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rehearsal.cloud.core.errors import ApiError, JsonObject, bad_request
from rehearsal.cloud.core.service import Call
from rehearsal.cloud.services.storage.versions import Version


def failed() -> ApiError:
    """412 in Cloud Storage's words."""
    return ApiError(
        412,
        "FAILED_PRECONDITION",
        "At least one of the pre-conditions you specified did not hold.",
        reason="conditionNotMet",
    )


def integer(query: Mapping[str, Any], name: str) -> int | None:
    """Return an int64 query parameter, which the wire carries as a decimal string."""
    value = query.get(name)
    if value is None or value == "":
        return None
    try:
        return int(value)
    except ValueError:
        raise bad_request(f"Invalid value for {name}: {value!r} is not an int64.") from None


def generation_of(query: Mapping[str, Any], name: str = "generation") -> int | None:
    """Return the generation that a request names. 0, which gcsfuse sends, means none in protobuf."""
    return integer(query, name) or None


@dataclass(frozen=True)
class Conditions:
    """Preconditions on an object's live generation. Generation 0 means that there is none."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None
    etag_match: str | None = None
    etag_not_match: str | None = None

    @classmethod
    def of(cls, call: Call, prefix: str = "if") -> Conditions:
        """From query parameters and headers; `prefix` is `ifSource` for the source of a copy or rename."""
        # A request over gRPC has no headers.
        headers = getattr(call.raw, "headers", {}) if prefix == "if" else {}
        return cls(
            integer(call.query, f"{prefix}GenerationMatch"),
            integer(call.query, f"{prefix}GenerationNotMatch"),
            integer(call.query, f"{prefix}MetagenerationMatch"),
            integer(call.query, f"{prefix}MetagenerationNotMatch"),
            headers.get("If-Match"),
            headers.get("If-None-Match"),
        )

    def check(self, version: Version | None, *, reading: bool = False) -> None:
        """ApiError 412 where one does not hold; 304 for a failed not-match of a read."""
        etag = version.etag if version else None
        numbers = (version.generation, version.metageneration) if version else (0, 0)
        self._check(*numbers, etag, reading)

    def check_resource(self, body: JsonObject, *, reading: bool = False) -> None:
        """Check them on a bucket or a folder; ApiError as `check`."""
        self._check(0, int(body["metageneration"]), body.get("etag"), reading)

    def _check(self, generation: int, metageneration: int, etag: str | None, reading: bool) -> None:
        if (
            self.generation_match not in (None, generation)
            or self.metageneration_match not in (None, metageneration)
            or (self.etag_match is not None and not _names(self.etag_match, etag))
        ):
            raise failed()
        if (
            self.generation_not_match == generation
            or self.metageneration_not_match == metageneration
            or (self.etag_not_match is not None and _names(self.etag_not_match, etag))
        ):
            unchanged = ApiError(304, "FAILED_PRECONDITION", "Not Modified", reason="notModified")
            raise unchanged if reading else failed()


def _names(header: str, etag: str | None) -> bool:
    """Return True if an If-Match or If-None-Match header has this etag; weak and strong ones are equal."""
    listed = {part.strip().removeprefix("W/").strip('"') for part in header.split(",")}
    return etag is not None and ("*" in listed or etag in listed)
