"""Preconditions of object requests: https://cloud.google.com/storage/docs/request-preconditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rehearsal.cloud.service import ApiError, bad_request
from rehearsal.cloud.storage.versions import Version


def failed() -> ApiError:
    """412 in Cloud Storage's words."""
    return ApiError(
        412,
        "FAILED_PRECONDITION",
        "At least one of the pre-conditions you specified did not hold.",
        reason="conditionNotMet",
    )


def _not_modified() -> ApiError:
    return ApiError(304, "FAILED_PRECONDITION", "Not Modified", reason="notModified")


def integer(query: Mapping[str, Any], name: str) -> int | None:
    """An int64 query parameter, which the wire carries as a decimal string."""
    value = query.get(name)
    if value is None or value == "":
        return None
    try:
        return int(value)
    except ValueError:
        raise bad_request(f"Invalid value for {name}: {value!r} is not an int64.") from None


def generation_of(query: Mapping[str, Any], name: str = "generation") -> int | None:
    """The generation that a request names. 0, which gcsfuse sends, is protobuf's way to say none."""
    return integer(query, name) or None


@dataclass(frozen=True)
class Conditions:
    """What the caller requires of an object's live generation. Generation 0 means that there is none."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None

    @classmethod
    def of(cls, query: Mapping[str, Any], prefix: str = "if") -> Conditions:
        """From query parameters; `prefix` is `ifSource` for the source of a copy."""
        return cls(
            integer(query, f"{prefix}GenerationMatch"),
            integer(query, f"{prefix}GenerationNotMatch"),
            integer(query, f"{prefix}MetagenerationMatch"),
            integer(query, f"{prefix}MetagenerationNotMatch"),
        )

    def check(self, version: Version | None, *, reading: bool = False) -> None:
        """ApiError 412 where one does not hold; 304 for a failed not-match of a read."""
        generation = version.generation if version else 0
        metageneration = version.metageneration if version else 0
        for wanted, actual in (
            (self.generation_match, generation),
            (self.metageneration_match, metageneration),
        ):
            if wanted is not None and wanted != actual:
                raise failed()
        for unwanted, actual in (
            (self.generation_not_match, generation),
            (self.metageneration_not_match, metageneration),
        ):
            if unwanted is not None and unwanted == actual:
                raise _not_modified() if reading else failed()
