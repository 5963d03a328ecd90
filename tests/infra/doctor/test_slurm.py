"""Findings of `tpu doctor` with the Slurm layer on, by its declaration alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import yaml

from infra.core.environment import required_services
from infra.doctor.checks import Target, checks
from infra.doctor.finding import Finding
from infra.engine.environments import shared_names
from infra.engine.pulumi import Pulumi
from infra.engine.settings import from_file
from infra.google.client import Client
from infra.settings.schema import Settings
from tests.infra.layers.slurm.cluster import SMALL, TPU, settings
from tests.slurm import lab

PUBLISHED = f"manifests/{'cd' * 32}"


def bundle(known: Settings, *published: str) -> Finding:
    google = SimpleNamespace(
        project="my-project", exists=lambda url: any(name in url.replace("%2F", "/") for name in published)
    )
    check = dict(checks(Target(known, (), cast("Client", google))))["bundle slurm"]
    (finding,) = check("bundle slurm")
    return finding


def test_the_bundle_of_the_machines_is_published_or_named_with_the_command() -> None:
    assert (bundle(settings(), PUBLISHED).state, bundle(settings(), PUBLISHED).detail) == (
        "ok", "cdcdcdcdcdcd… is published",
    )  # fmt: skip
    missing = bundle(settings())
    assert missing.state == "missing"
    assert missing.detail.startswith("slurm:bundle: gs://my-project-checkpoints/bundles/manifests/cdcd")
    assert missing.fix == "tpu publish dev"
    unset = bundle(lab.settings({"slurm:bundle": None}))
    assert unset.detail == "slurm:bundle: no bundle was published for the machines to install"
    assert unset.fix == "tpu publish dev", "tpu up publishes the hosts' first bundle alone"


def test_the_layer_is_among_the_stacks_services_quotas_and_prices() -> None:
    known = settings()
    names = [name for name, _ in checks(Target(known, (), cast("Client", SimpleNamespace(project="p"))))]
    assert {"stack slurm", "conflicts slurm", "quota"} <= {*names}
    assert {"secretmanager.googleapis.com", "iap.googleapis.com"} <= {*required_services(known)}
    (layer,) = (layer for layer in known.layers_on if layer.name == "slurm")
    assert {(use.quota.place, use.amount) for use in layer.hooks.quotas(known)} >= {("us-east5-b", 48)}
    assert any("slurm-dev-controller" in str(row) for row in layer.prices(known))


def test_the_zones_of_nodesets_are_asked_for_their_sizes_and_images() -> None:
    offered = {
        "acceleratorTypes": [{"type": "v6e-16"}],
        "runtimeVersions": [{"version": "v2-alpha-tpuv6e"}],
    }
    google = SimpleNamespace(
        project="my-project", tpu=lambda path: path, items=lambda url, collection, query: offered[collection]
    )
    zones = ["us-east5-a", "us-east5-b"]
    known = settings({**TPU, "fallbackZones": ["us-east5-a"]}, SMALL, tpu__zones=zones)
    by_name = dict(checks(Target(known, (), cast("Client", google))))
    findings = {zone: [*by_name[f"zone {zone}"](zone)] for zone in zones}
    assert [finding.state for finding in findings["us-east5-a"]] == ["ok"]
    (lacking,) = findings["us-east5-b"]
    assert lacking.detail == "offers no accelerator type v6e-8 to this project"


def test_a_cluster_of_another_environment_with_its_name_is_told(tmp_path: Path) -> None:
    for environment in ("dev", "eu"):
        config = {**lab.values({"slurm:name": "train"}), "network:name": f"{environment}-tpu"}
        text = yaml.safe_dump({"config": config})
        (tmp_path / f"Pulumi.{environment}.yaml").write_text(text)
    problems, _ = shared_names(from_file("eu", tmp_path), tmp_path)
    rules = {problem.path: problem.rule for problem in problems}
    assert "Pulumi.dev.yaml" in rules["slurm:name"]


def test_a_state_disk_that_a_destroyed_stack_left_comes_with_the_setting_that_reuses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Pulumi, "state", lambda *_: [])
    known = settings()
    google = SimpleNamespace(project="my-project", exists=lambda url: url.endswith("slurm-dev-state"))
    check = dict(checks(Target(known, (), cast("Client", google))))["conflicts slurm"]
    (finding,) = check("conflicts slurm")
    disk = "projects/my-project/zones/us-east5-b/disks/slurm-dev-state"
    assert finding.detail.startswith(f"{disk} is at Google, and the stack doesn't hold it")
    assert finding.fix == f"slurm:existingStateDisk: {disk}, then tpu up dev slurm"
