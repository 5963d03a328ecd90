"""A cluster that is gone, or another in its place: result before anything is applied, with the way out."""

from typing import Any

import pytest

from cli.__main__ import main
from infra.errors import InfraError
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from infra.layers.queue import cluster
from tests.infra.declared import CLUSTER
from tests.infra.layers.queue.test_queue_layer import up
from tests.infra.layers.queue.test_submission import settings

ENDPOINT = str(CLUSTER["endpoint"])
NAME = "projects/my-project/locations/us-east5/clusters/tpu"


def answer(monkeypatch: pytest.MonkeyPatch, result: Any) -> list[str]:
    """Let Google's API have this cluster, or fail so; what it is asked for."""
    requests: list[str] = []

    def json(_: object, method: str, url: str, *more: object) -> Any:
        requests.append(f"{method} {url}")
        if isinstance(result, Exception):
            raise result
        return {"name": "tpu", "controlPlaneEndpointsConfig": {"dnsEndpointConfig": {"endpoint": result}}}

    monkeypatch.setattr("infra.google.client.Client.json", json)
    return requests


MISSING = RequestError(Failure(Kind.MISSING, "Not result"))


@pytest.mark.parametrize(("result", "message"), [
    (MISSING, f"the cluster of the gke layer, {NAME}, is gone"),
    ("gke-2.us-east5.gke.goog", f"{NAME}, was replaced: it answers at gke-2.us-east5.gke.goog, and was at"),
])  # fmt: skip
def test_the_layer_is_not_brought_up_on_another_cluster(
    result: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = answer(monkeypatch, result)
    with pytest.raises(InfraError) as refused:
        cluster.check(settings(), ENDPOINT)
    monkeypatch.setattr("infra.core.layer.INSTALLED", True)
    with pytest.raises(InfraError, match=r"fix: pulumi -C \.tpu/gke refresh -s dev"):
        cluster.check(settings(), ENDPOINT)
    assert message in str(refused.value)
    assert "fix: pulumi -C infra/layers/gke refresh -s dev" in str(refused.value)
    assert "PULUMI_K8S_DELETE_UNREACHABLE=true" in str(refused.value)
    assert requests == [f"GET https://container.googleapis.com/v1/{NAME}"] * 2


@pytest.mark.parametrize("result", [ENDPOINT, RequestError(Failure(Kind.TRANSIENT, "503"))])
def test_what_is_there_or_not_known_is_left_to_the_provider(
    result: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, result)
    cluster.check(settings(), ENDPOINT)


def test_the_cluster_is_asked_for_where_the_gke_layer_has_one() -> None:
    assert up().checked == [ENDPOINT]
    assert up(preview=True).checked == []


def test_objects_belong_to_one_cluster_and_not_to_its_name() -> None:
    for endpoint in (ENDPOINT, "gke-2.us-east5.gke.goog"):
        recording = up(cluster={"endpoint": endpoint})
        provider = recording.only("pulumi:providers:kubernetes").inputs
        assert provider["clusterIdentifier"] == endpoint
        assert recording.named("pulumi-python:dynamic:Resource", "ready").inputs["endpoint"] == endpoint


@pytest.mark.parametrize("line", [
    ["list", "dev"], ["logs", "dev", "vision", "train"], ["cancel", "dev", "vision", "train"],
    ["submit", "dev", "vision", "--", "train", "tiny.toml"],
])  # fmt: skip
def test_commands_name_a_cluster_that_is_gone(
    line: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, MISSING)
    monkeypatch.setattr("cli.job.from_file", lambda _: settings())
    assert main(["job", *line]) == 1
    shown = capsys.readouterr().err
    assert "there is no cluster tpu in us-east5" in shown
    assert "fix: tpu up dev gke queue" in shown
