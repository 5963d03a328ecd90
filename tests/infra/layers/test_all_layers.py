"""Rules for every resource of every layer."""

import re
from collections import Counter

import pulumi
import pytest

from infra.engine.registry import layers
from rehearsal.providers.gcp.types import TYPES
from tests.infra.declared import EVERYTHING, LAYERS, UP, declared
from tests.infra.recording import BASE, Recording, parsed, run

DECLARED = {
    "storage": 62,
    "network": 11,
    "data": 7,
    "tpu": 7,
    "gke": 42,
    "queue": 137,
    "builds": 44,
    "pipeline": 66,
    "slurm": 48,
    "monitoring": 60,
}
ONLY_SERVICES = {(build, "storage") for build in ("builds", "data", "monitoring", "network", "pipeline")}
"""Layers that need what storage switches on, and none of its outputs."""
KNOWN = {resource.table.token for resource in TYPES.values()}  # recorded, or taken from published source


@pytest.fixture(scope="module", params=[(layer, preview) for layer in LAYERS for preview in (True, False)])
def recording(request: pytest.FixtureRequest) -> tuple[str, Recording]:
    layer, preview = request.param
    return layer, declared(layer, preview)


def test_how_much_a_layer_declares(recording: tuple[str, Recording]) -> None:
    assert len(recording[1].resources) == DECLARED[recording[0]]


@pytest.mark.parametrize(
    ("layer", "lacks"),
    [
        *(
            (item.name, entry)
            for item in layers()
            for entry in item.reads
            if (item.name, entry) not in ONLY_SERVICES
        ),
        ("gke", "builds"),
        ("pipeline", "builds"),
        ("queue", "data"),
        ("tpu", "data"),
    ],
)
def test_an_update_names_the_layer_that_isnt_up_before_it_makes_anything(layer: str, lacks: str) -> None:
    result: list[Recording] = []
    with pytest.raises(pulumi.RunError, match=f"^{lacks} is not up; run this first: tpu up dev {lacks}"):
        run(layer, EVERYTHING, up={**UP, lacks: {}}, into=result)
    assert [item.type for item in result[0].resources if not item.type.startswith("pulumi:")] == []


@pytest.mark.parametrize("layer", [item.name for item in layers() if "storage" in item.needs])
def test_a_service_that_came_with_a_setting_is_enabled_before_anything_is_made(layer: str) -> None:
    (entry,) = [item for item in layers() if item.name == layer]
    settings = parsed({**BASE, **EVERYTHING})
    *rest, last = sorted(entry.services(settings))
    result: list[Recording] = []
    up = {**UP, "storage": {**UP["storage"], "services": rest}}
    with pytest.raises(
        pulumi.RunError, match=f"^{last}: not enabled in my-project; run this first: tpu up dev storage"
    ):
        run(layer, EVERYTHING, up=up, into=result)
    assert [item.type for item in result[0].resources if not item.type.startswith("pulumi:")] == []
    assert f"{last}: not enabled" in "\n".join(run(layer, EVERYTHING, preview=True, up=up).log)


def test_only_known_types_are_used(recording: tuple[str, Recording]) -> None:
    types = {item.type for item in recording[1].resources if item.type.startswith("gcp:")}
    assert types
    assert types <= KNOWN


def test_one_explicit_provider_with_the_default_labels(recording: tuple[str, Recording]) -> None:
    layer, done = recording
    provider = done.only("pulumi:providers:gcp")
    assert provider.inputs["project"] == "my-project"
    assert provider.inputs["defaultLabels"] == (f'{{"team": "ml", "environment": "dev", "layer": "{layer}"}}')
    own = [item for item in done.resources if item.type.startswith("gcp:")]
    assert own
    assert all("pulumi:providers:gcp::gcp::" in item.options["provider"] for item in own)


def test_every_resource_belongs_to_a_component(recording: tuple[str, Recording]) -> None:
    layer, done = recording
    own = [item for item in done.resources if item.type.startswith("gcp:")]
    assert own
    for entry in own:
        assert f"tpu:{layer}:" in entry.options["parent"], entry.name
    components = [item for item in done.resources if item.type.startswith("tpu:")]
    assert all(re.fullmatch(rf"tpu:{layer}:[A-Z][A-Za-z]+", item.type) for item in components)


def test_no_two_resources_have_one_urn(recording: tuple[str, Recording]) -> None:
    """The engine refuses the second one."""
    urns = Counter((item.options.get("parent"), item.type, item.name) for item in recording[1].resources)
    assert urns
    assert [urn for urn, times in urns.items() if times > 1] == []


def test_every_name_is_ours(recording: tuple[str, Recording]) -> None:
    """Pulumi would add random letters to a name that is left out."""
    named = {"compute", "kms", "storage", "tpu"}
    for item in recording[1].resources:
        if (
            item.type.startswith("gcp:")
            and item.type.split(":")[1].split("/")[0] in named
            and "IAM" not in item.type
        ):
            assert item.inputs["name"], item.type


def test_only_what_must_outlive_everything_is_protected(recording: tuple[str, Recording]) -> None:
    protected = {item.type for item in recording[1].resources if item.options.get("protect")}
    expected = {
        "gke": {"gcp:storage/bucket:Bucket"},
        "pipeline": {"gcp:storage/bucket:Bucket"},
        "slurm": {"gcp:compute/disk:Disk", "gcp:filestore/instance:Instance"},
        "storage": {
            "gcp:storage/bucket:Bucket",
            "gcp:storage/bucketIAMMember:BucketIAMMember",
            "gcp:projects/iAMMember:IAMMember",
            "gcp:serviceaccount/account:Account",
            "gcp:kms/keyRing:KeyRing",
            "gcp:kms/cryptoKey:CryptoKey",
        },
    }
    assert protected == expected.get(recording[0], set())


def test_what_a_fleet_stands_on_is_deleted_after_everything_was_asked(
    recording: tuple[str, Recording],
) -> None:
    """The resource that refuses a destroy depends on every other one, so that it goes first."""
    layer, done = recording
    rest = {item.name for item in done.resources if item.type.startswith(("gcp:", "kubernetes:"))}
    assert rest
    for holding in layers():
        if not holding.holds or layer not in (holding.name, *holding.needs):
            continue
        guard = done.named("pulumi-python:dynamic:Resource", holding.holds)
        assert guard.inputs["environment"] == "dev"
        assert f"pulumi:providers:pulumi-python::{holding.holds}::" in guard.options["provider"]
        needed = {urn.rpartition("::")[2] for urn in guard.options["dependencies"]}
        assert rest | {item.name for item in done.resources if item.name == "stack"} <= needed
