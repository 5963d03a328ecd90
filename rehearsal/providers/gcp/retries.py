"""Retries and immediate failures, as in the official provider.

By its published source (`transport/error_retry_predicates.go`, read on 2026-11-22) and Go's HTTP client: a
connection that ends without an answer (`EOF`) isn't sent again, whereas a reset one is.
"""

from __future__ import annotations

import errno
import http.client
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import requests

# 429 and 503 were recorded; 500 and 502 stand beside them in the source.
_STATUSES = frozenset({429, 500, 502, 503})
_PER_MINUTE = re.compile(r"Quota exceeded for quota metric '.*' and limit '.* per minute' of service")


@dataclass(frozen=True)
class Lost:
    """Reason for a request without an answer. `ended`: its connection ended without one."""

    words: str
    again: bool = False
    ended: bool = False


def is_retried(response: requests.Response) -> bool:
    """Return True for an answer that stands for a temporary condition."""
    match response.status_code:
        case 400:  # a network or subnet on which another operation is under way
            return "resourceNotReady" in response.text and "networks" in response.text
        case 403:  # what should have been 429
            return bool(_PER_MINUTE.search(response.text)) or _too_many_operations(response)
        case 409:
            return "operationInProgress" in response.text
        case status:
            return status in _STATUSES


def why_lost(problem: requests.RequestException) -> Lost:
    """Return the error text of Go's HTTP client, and True if the provider would retry."""
    causes = list(_causes(problem))
    if isinstance(problem, requests.Timeout) or any(isinstance(cause, TimeoutError) for cause in causes):
        return Lost("net/http: timeout awaiting response headers", again=True)
    for cause in causes:
        match cause:
            case http.client.RemoteDisconnected():  # also a ConnectionResetError, by its class
                return Lost("EOF", ended=True)
            case http.client.IncompleteRead():  # in the middle of an answer's body
                return Lost("unexpected EOF")
            case ConnectionResetError():
                return Lost("read: connection reset by peer", again=True)
            case socket.gaierror(errno=socket.EAI_AGAIN):
                return Lost(f"lookup: {cause.strerror}", again=True)
            case OSError(errno=errno.ECONNREFUSED):
                return Lost("connect: connection refused")
    return Lost(str(causes[-1]) or type(causes[-1]).__name__)


def _too_many_operations(response: requests.Response) -> bool:
    try:
        details = response.json()["error"]["details"]
        return any(detail.get("reason") == "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED" for detail in details)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _causes(problem: BaseException | None) -> Iterator[BaseException]:
    while problem is not None:
        yield problem
        problem = problem.__cause__ or problem.__context__
