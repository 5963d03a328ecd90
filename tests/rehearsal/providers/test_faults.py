"""Refusals, failures and changes behind its back: the official provider's recorded behaviour."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rehearsal.providers.gcp.provider import Provider
from rehearsal.providers.gcp.settings import Settings
from rehearsal.providers.plugin.errors import CreatedButError, StandInError
from rehearsal.providers.plugin.values import has_unknown
from tests.rehearsal.providers.replay import Google, Recording, google, load

VM = "gcp:tpu/v2Vm:V2Vm"
INPUTS = {"acceleratorType": "v6e-4", "runtimeVersion": "v2-alpha-tpuv6e", "zone": "us-east5-b"}


def checked(name: str, **others: object) -> dict[str, object]:
    return Provider().check(VM, {**INPUTS, "name": name, **others}, {}, "vm", b"").inputs


@contextmanager
def replayed(
    recording: Recording, phase: str, poll_s: float = 0.001, first_backoff_s: float = 0.001
) -> Iterator[tuple[Google, Provider]]:
    """A provider whose requests are answered as recorded."""
    with google(recording) as played:
        played.phase = phase
        provider = Provider(poll_s=poll_s, first_backoff_s=first_backoff_s)
        provider.configure(played.settings())
        yield played, provider


FAULTS = load("tpu.V2Vm.faults")


@pytest.fixture
def faults() -> Iterator[tuple[Google, Provider]]:
    with replayed(FAULTS, "create-429-twice") as (played, provider):
        yield played, provider
        assert played.unexpected == []
        for phase, requests in played.sent.items():
            assert requests == FAULTS.requests(phase), phase


def test_retries_preemption_and_disappearance_as_recorded(faults: tuple[Google, Provider]) -> None:
    played, provider = faults
    inputs = checked("wire-tpu-o", labels={"a": "1"})
    id_, state = provider.create(VM, inputs)
    assert state["state"] == "READY"
    played.phase = "refresh-preempted"
    preempted = provider.read(VM, id_, state)
    assert preempted is not None
    assert preempted["state"] == "PREEMPTED"
    played.phase = "up-after-preempted"
    assert provider.diff(VM, preempted, inputs).differences == []
    played.phase = "refresh-gone"
    assert provider.read(VM, id_, preempted) is None
    played.phase = "up-after-gone"
    id_, state = provider.create(VM, inputs)
    played.phase = "update-gone-without-refresh"
    with pytest.raises(StandInError, match="Error 404"):
        provider.update(VM, id_, state, checked("wire-tpu-o", labels={"a": "2"}))
    played.phase = "destroy-gone"
    provider.delete(VM, id_, state)
    played.phase = "create-403"
    with pytest.raises(StandInError, match="Error 403") as refused:
        provider.create(VM, inputs)
    assert not isinstance(refused.value, CreatedButError)
    played.phase = "create-503-once"
    id_, state = provider.create(VM, inputs)
    played.phase = "destroy"
    provider.delete(VM, id_, state)


def test_a_stockout_leaves_no_resource_and_has_googles_reason() -> None:
    with (
        replayed(load("tpu.V2Vm.createFailed"), "create") as (played, provider),
        pytest.raises(StandInError) as failed,
    ):
        provider.create(VM, checked("wire-tpu-f"))
    assert not isinstance(failed.value, CreatedButError)
    assert "Error code 8, message: There is no more capacity in the zone" in str(failed.value)
    assert played.sent["create"] == played.recording.requests("create")


def test_both_ways_to_say_an_accelerator_are_refused_as_recorded() -> None:
    recording = load("tpu.V2Vm.rejectedBothAccelerators")
    both = {**INPUTS, "name": "vm", "acceleratorConfig": {"type": "V6E", "topology": "2x2"}}
    failures = Provider().check(VM, both, {}, "vm", b"").failures
    assert sorted(f"error: {reason}" for _, reason in failures) == sorted(recording.content["error"])


def test_a_resource_that_exists_but_cannot_be_read_stays_in_the_state() -> None:
    recording = load("compute.Network")
    unreadable = [r for r in recording.content["requests"] if "networks/wire-net" not in r["path"]]
    partial = Recording("compute.Network", {**recording.content, "requests": unreadable})
    with replayed(partial, "create") as (_, provider):
        inputs = provider.check("gcp:compute/network:Network", {"name": "wire-net"}, {}, "net", b"").inputs
        # The recorded answers fit: only the body differs, which the server doesn't look at.
        with pytest.raises(CreatedButError, match="418") as half:
            provider.create("gcp:compute/network:Network", inputs)
    assert half.value.id == "projects/wire-test/global/networks/wire-net"
    assert half.value.outputs["name"] == "wire-net"
    assert not has_unknown(half.value.outputs), "the engine refuses a state with unknown values"


def test_retries_end_at_the_resources_timeout() -> None:
    with (
        replayed(FAULTS, "create-429-twice", first_backoff_s=0.2) as (played, provider),
        pytest.raises(StandInError, match="Error 429"),
    ):
        provider.create(VM, checked("wire-tpu-o", labels={"a": "1"}), timeout_s=0.1)
    assert len(played.sent["create-429-twice"]) == 1


def test_a_refused_connection_is_one_sentence() -> None:
    provider = Provider(first_backoff_s=0.2)
    endpoints = {"tpuV2CustomEndpoint": "http://127.0.0.1:9/"}
    provider.configure(Settings(project="p", access_token="t", endpoints=endpoints))
    with pytest.raises(StandInError, match=r'Post "http://127\.0\.0\.1:9/.*": connect: connection refused'):
        provider.create(VM, checked("vm"), timeout_s=0.1)


def test_the_engine_can_stop_a_wait() -> None:
    with replayed(FAULTS, "create-503-once", poll_s=60) as (_, provider):
        provider.cancel()
        with pytest.raises(StandInError, match="interrupted"):
            provider.create(VM, checked("wire-tpu-o", labels={"a": "1"}))


def test_no_credentials_have_a_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", f"{tmp_path}/absent.json")
    provider = Provider()
    provider.configure(Settings(project="p"))
    with pytest.raises(StandInError, match="no Google credentials") as missing:
        provider.create(VM, checked("vm"))
    assert missing.value.fix == "gcloud auth application-default login"


@pytest.mark.parametrize("credentials", ["/nonexistent/key.json", "{not json"])
def test_credentials_that_cannot_be_read_are_one_sentence(credentials: str) -> None:
    provider = Provider()
    provider.configure(Settings(project="p", credentials=credentials))
    with pytest.raises(StandInError, match="gcp:credentials can't be read: "):
        provider.read("gcp:compute/network:Network", "projects/p/global/networks/n", {})
