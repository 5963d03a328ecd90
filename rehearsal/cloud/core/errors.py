"""Errors of Google's APIs, as the services raise them."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]


class ApiError(Exception):
    """A refusal in Google's form (https://cloud.google.com/apis/design/errors).

    `status` is the canonical name (`NOT_FOUND`); `reason` the legacy one (`notFound`) that
    compute and storage clients look at.
    """

    def __init__(
        self,
        code: int,
        status: str,
        message: str,
        *,
        reason: str = "",
        details: list[JsonObject] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.message = message
        self.reason = reason or _REASONS.get(code, "backendError")
        self.details = details or []

    def body(self) -> JsonObject:
        """Return the JSON body: both the canonical and the legacy fields, as googleapis.com sends them."""
        error: JsonObject = {
            "code": self.code,
            "message": self.message,
            "errors": [{"message": self.message, "domain": "global", "reason": self.reason}],
            "status": self.status,
        }
        if self.details:
            error["details"] = self.details
        return {"error": error}


_REASONS = {
    400: "badRequest",
    401: "authError",
    403: "forbidden",
    404: "notFound",
    409: "alreadyExists",
    412: "conditionNotMet",
    429: "rateLimitExceeded",
}


def bad_request(message: str) -> ApiError:
    """Return 400 INVALID_ARGUMENT."""
    return ApiError(400, "INVALID_ARGUMENT", message, reason="invalid")


def not_found(what: str) -> ApiError:
    """Return 404 for the resource with this name."""
    return ApiError(404, "NOT_FOUND", f"The resource '{what}' was not found")


def already_exists(what: str) -> ApiError:
    """Return 409 for the resource with this name."""
    return ApiError(409, "ALREADY_EXISTS", f"The resource '{what}' already exists")


class NotEmulatedError(ApiError):
    """A feature of Google's that this cloud lacks. It is counted, and fails a rehearsal."""

    def __init__(self, what: str) -> None:
        super().__init__(501, "UNIMPLEMENTED", f"{what} is not emulated.", reason="notImplemented")
