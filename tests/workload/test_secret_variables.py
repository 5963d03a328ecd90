"""Secrets reach a program's environment, and nothing else."""

from __future__ import annotations

import base64
import json
import os
import urllib.error
from email.message import Message
from io import BytesIO
from typing import Any

import pytest

from workload.__main__ import main
from workload.host import secret_variables
from workload.host.secret_variables import HopelessSecretError, SecretError, resolved

VALUES = {
    "hf-token/versions/latest": b"hf_1\n",
    "key/versions/3": "schlüssel".encode(),
    "pem/versions/1": b"a\nb\n",
}


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_variables, "access_token", lambda: "token")
    monkeypatch.setattr(secret_variables, "read", lambda _: "my-project")
    monkeypatch.setattr(secret_variables, "_PAUSE_S", 0.0)


def answering(monkeypatch: pytest.MonkeyPatch, *codes: int) -> list[str]:
    """Serve `VALUES`, after refusals with these codes; return the paths of requests."""
    paths: list[str] = []
    refusals = iter(codes)

    def answer(request: Any, timeout: float) -> BytesIO:
        assert request.headers == {"Authorization": "Bearer token"}
        paths.append(request.full_url.removeprefix("https://secretmanager.googleapis.com/v1/"))
        name = paths[-1].removeprefix("projects/my-project/secrets/").removesuffix(":access")
        if code := next(refusals, 0 if name in VALUES else 404):
            raise urllib.error.HTTPError("u", code, "no", Message(), None)
        return BytesIO(json.dumps({"payload": {"data": base64.b64encode(VALUES[name]).decode()}}).encode())

    monkeypatch.setattr("urllib.request.urlopen", answer)
    return paths


def test_values_take_the_place_of_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = answering(monkeypatch)
    references = "hf-token@latest:HF_TOKEN key@3:KEY pem@1:PEM"
    assert resolved({"A": "1", "TPU_SECRETS": references}) == {
        "A": "1", "HF_TOKEN": "hf_1", "KEY": "schlüssel", "PEM": "a\nb",
    }  # fmt: skip
    assert paths[0] == "projects/my-project/secrets/hf-token/versions/latest:access"


def test_without_references_nothing_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = answering(monkeypatch)
    assert resolved({"A": "1"}) == {"A": "1"}
    assert paths == []


def test_a_grant_that_isnt_there_yet_and_an_outage_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(answering(monkeypatch, 403, 503)) == 0
    assert resolved({"TPU_SECRETS": "hf-token@latest:T"}) == {"T": "hf_1"}


@pytest.mark.parametrize(("reference", "code", "error", "message"), [
    ("hf-token@latest:T", 403, SecretError, "may not\n    fix: storage:secrets: .hf-token., then tpu up"),
    ("none@latest:T", 0, HopelessSecretError, "none@latest can't be read: HTTP 404: no value of"),
    ("hf-token@latest:T", 400, HopelessSecretError, "fix: gcloud secrets versions list hf-token"),
    ("hf-token", 0, HopelessSecretError, "isn't NAME@VERSION:VARIABLE"),
])  # fmt: skip
def test_one_that_cant_be_read_is_named_with_the_fix(
    reference: str, code: int, error: type[SecretError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, *[code] * bool(code) * 2)
    with pytest.raises(SecretError, match=message) as refused:
        resolved({"TPU_SECRETS": reference}, patience_s=-1.0)
    assert type(refused.value) is error
    assert refused.value.exit_code == (2 if error is HopelessSecretError else 1)


@pytest.mark.parametrize("value", [b"", b"\n", b"\xff\xfe", b"a\0b"])
def test_what_is_no_text_of_an_environment_is_refused_without_its_value(
    value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VALUES, "odd/versions/1", value)
    answering(monkeypatch)
    with pytest.raises(HopelessSecretError, match="the secret odd@1 holds no text for ODD\n    fix: printf"):
        resolved({"TPU_SECRETS": "odd@1:ODD"})


def test_the_program_takes_the_place_of_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(monkeypatch)
    replaced: list[Any] = []

    def replace(*arguments: Any) -> None:
        replaced.extend(arguments)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvpe", replace)
    monkeypatch.setenv("TPU_SECRETS", "hf-token@latest:HF_TOKEN")
    with pytest.raises(SystemExit):
        main(["secrets", "--", "sh", "-c", "echo $HF_TOKEN"])
    assert replaced[:2] == ["sh", ["sh", "-c", "echo $HF_TOKEN"]]
    assert (replaced[2]["HF_TOKEN"], "TPU_SECRETS" in replaced[2]) == ("hf_1", False)
    assert "HF_TOKEN" not in os.environ
    assert "hf_1" not in "".join(capsys.readouterr())


def test_a_program_that_isnt_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["secrets", "--", "no-such-program"]) == 2
    assert "no-such-program: must be on PATH, or a path" in capsys.readouterr().err.replace('program = "', "")
