"""Waiting until a grant counts, an API answers, a metric is known: how long, and for what."""

from __future__ import annotations

from typing import Any

import pytest

from infra.google import client
from infra.google.acting import PERMISSION, once_it_may_act, wait_until_it_may_act
from infra.google.client import RequestError
from infra.google.enabled import wait_until_it_answers
from infra.google.failures import Failure, Kind
from infra.google.measured import wait_until_it_is_known

ACCOUNTS = ["build@p.iam.gserviceaccount.com", "check@p.iam.gserviceaccount.com"]
MAY, NOT_YET = {"permissions": [PERMISSION]}, dict[str, Any]()


class Google:
    """Answers in order, the last one again and again; a Kind is a failure."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.requests = list(answers), list[str]()

    def json(self, method: str, url: str, body: Any) -> Any:
        assert (method, body) == ("POST", {"permissions": [PERMISSION]})
        return self.send(method, url)

    def send(self, method: str, url: str) -> Any:
        self.requests.append(url.rpartition("/")[2])
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Kind):
            raise RequestError(Failure(answer, "of the test"))
        return answer


@pytest.fixture
def slept() -> list[float]:
    return []


def waited(
    google: Google, slept: list[float], monkeypatch: pytest.MonkeyPatch, patience_s: float = 60.0
) -> list[str]:
    monkeypatch.setattr(client, "Client", lambda project: google)
    wait_until_it_may_act("p", ACCOUNTS, patience_s=patience_s, sleep=slept.append)
    return google.requests


def test_each_account_is_waited_for(slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    google = Google(Kind.MISSING, NOT_YET, MAY, Kind.PERMISSION, MAY)
    requested = waited(google, slept, monkeypatch)
    assert requested == [f"{ACCOUNTS[0]}:testIamPermissions"] * 3 + [f"{ACCOUNTS[1]}:testIamPermissions"] * 2
    assert len(slept) == 3


def test_who_was_never_granted_it_is_not_waited_for_without_end(
    slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    google = Google(NOT_YET)
    requested = waited(google, slept, monkeypatch, patience_s=0.2)
    assert set(requested) == {f"{ACCOUNTS[0]}:testIamPermissions"}


@pytest.mark.parametrize("kind", [Kind.LOGIN, Kind.API_OFF, Kind.UNKNOWN])
def test_no_answer_is_no_reason_to_wait(
    kind: Kind, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(waited(Google(kind), slept, monkeypatch)) == 1
    assert slept == []


def test_nothing_waits_where_nobody_is_granted_it() -> None:
    assert once_it_may_act("p", ACCOUNTS, []) is None


def test_an_api_is_waited_for_while_it_refuses_as_one_that_is_off(
    slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    google = Google(Kind.API_OFF, Kind.API_OFF, Kind.PERMISSION)
    monkeypatch.setattr(client, "Client", lambda project: google)
    wait_until_it_answers("unknown.googleapis.com", "p", sleep=slept.append)
    assert google.requests == []
    wait_until_it_answers("compute.googleapis.com", "p", sleep=slept.append)
    assert (google.requests, len(slept)) == (["regions"] * 3, 2)


def test_each_metric_is_waited_for_until_it_is_known(
    slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    google = Google(Kind.MISSING, Kind.MISSING, True, Kind.PERMISSION)
    monkeypatch.setattr(client, "Client", lambda project: google)
    wait_until_it_is_known(("logging.googleapis.com/user/a", "b", "never"), "p", sleep=slept.append)
    assert google.requests == ["a", "a", "a", "b"]
    assert len(slept) == 2
