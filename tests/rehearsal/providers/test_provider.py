"""Checking, differences, previews and settings, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest

from rehearsal.providers.gcp.field import Field
from rehearsal.providers.gcp.lifecycle import Context, PlannedUpdate, Resource
from rehearsal.providers.gcp.provider import Provider
from rehearsal.providers.gcp.settings import Settings, unknown_settings
from rehearsal.providers.gcp.types import TYPES
from rehearsal.providers.gcp.types.compute import EXCEPTIONS
from rehearsal.providers.plugin.errors import StandInError, UnsupportedError
from rehearsal.providers.plugin.values import UNKNOWN, from_struct, to_struct

NETWORK = "gcp:compute/network:Network"
SUBNETWORK = "gcp:compute/subnetwork:Subnetwork"
FIREWALL = "gcp:compute/firewall:Firewall"
DISK = "gcp:compute/disk:Disk"
VM = "gcp:tpu/v2Vm:V2Vm"
POOL = "gcp:container/nodePool:NodePool"
BUCKET = "gcp:storage/bucket:Bucket"
INSTANCE = "gcp:compute/instance:Instance"
SHARED_EXCEPTIONS = {*EXCEPTIONS, "location"}  # of types that have the property


def provider(**settings: Any) -> Provider:
    made = Provider()
    made.configure(Settings(project="p", access_token="t", **settings))
    return made


def reasons(token: str, inputs: dict[str, Any]) -> list[str]:
    return [reason for _, reason in Provider().check(token, inputs, {}, "thing", b"").failures]


@pytest.mark.parametrize(
    ("token", "inputs", "message"),
    [
        (NETWORK, {"colour": "red"}, "the stand-in doesn't know the property 'colour'"),
        (BUCKET, {"location": "x", "website": {}}, "the stand-in doesn't know the property 'website'"),
        (
            NETWORK,
            {"deleteDefaultRoutesOnCreate": True},
            "doesn't know deleteDefaultRoutesOnCreate = True, only False",
        ),
        (NETWORK, {"mtu": "large"}, "expected int, got 'large'"),
        (NETWORK, {"mtu": True}, "expected int, got True"),
        (SUBNETWORK, {}, "Missing required property 'network'"),
        (SUBNETWORK, {"network": "n", "logConfig": {"colour": 1}}, "the property 'logConfig.colour'"),
        (FIREWALL, {"network": "n", "allows": [{"ports": ["22"]}]}, "Missing required property 'protocol'"),
        (
            FIREWALL,
            {"network": "n", "direction": "IN"},
            'to be one of ["INGRESS" "EGRESS" ""], got IN. Examine values at \'thing.direction\'.',
        ),
        (
            VM,
            {"runtimeVersion": "r", "dataDisks": [{"sourceDisk": "d", "mode": "READONLY"}]},
            "got READONLY. Examine values at 'thing.dataDisks[0].mode'.",
        ),
        (
            VM,
            {"runtimeVersion": "r", "networkConfig": {}, "networkConfigs": [{}]},
            '"network_config": conflicts with network_configs',
        ),
    ],
)
def test_what_is_wrong_is_named(token: str, inputs: dict[str, Any], message: str) -> None:
    assert any(message in reason for reason in reasons(token, inputs))


def test_unknown_values_pass_the_check() -> None:
    assert reasons(SUBNETWORK, {"network": UNKNOWN, "ipCidrRange": UNKNOWN, "logConfig": UNKNOWN}) == []


def test_an_automatic_name_is_kept_and_depends_on_the_engines_seed() -> None:
    first = Provider().check(NETWORK, {}, {}, "net", b"seed").inputs
    assert first["name"].startswith("net-")
    assert "name" in first["__defaults"]
    assert Provider().check(NETWORK, {}, first, "net", b"other").inputs["name"] == first["name"]
    assert Provider().check(NETWORK, {}, {}, "net", b"other").inputs["name"] != first["name"]


def test_unsupported_types_and_functions_are_named() -> None:
    with pytest.raises(UnsupportedError, match="gcp:redis/instance:Instance"):
        Provider().check("gcp:redis/instance:Instance", {}, {}, "t", b"")
    with pytest.raises(UnsupportedError, match="getImage"):
        Provider().invoke("gcp:compute/getImage:getImage", {})
    with pytest.raises(UnsupportedError, match="argument 'region' of getBucket"):
        provider().invoke("gcp:storage/getBucket:getBucket", {"name": "n", "region": "r"})


def test_a_preview_knows_the_programs_values_and_not_googles() -> None:
    inputs = (
        Provider()
        .check(VM, {"runtimeVersion": "r", "name": "vm", "labels": {"a": "1"}}, {}, "vm", b"")
        .inputs
    )
    id_, outputs = provider(zone="us-east5-b", default_labels={"env": "dev"}).create(VM, inputs, preview=True)
    assert id_ == ""
    assert outputs["name"] == "vm"
    assert outputs["zone"] == "us-east5-b"
    assert outputs["project"] == "p"
    assert outputs["effectiveLabels"] == {"a": "1", "env": "dev", "goog-pulumi-provisioned": "true"}
    assert outputs["state"] is UNKNOWN
    assert outputs["networkEndpoints"] is UNKNOWN
    assert outputs["acceleratorType"] is UNKNOWN


def test_a_previewed_update_keeps_what_is_known() -> None:
    state = {"name": "vm", "description": "old", "state": "READY", "id": "projects/p/locations/z/nodes/vm"}
    outputs = provider().update(VM, state["id"], state, {"name": "vm", "description": "new"}, preview=True)
    assert (outputs["description"], outputs["state"], outputs["id"]) == ("new", "READY", state["id"])


def test_a_replacement_under_a_fixed_name_deletes_first() -> None:
    state = {"name": "vm", "runtimeVersion": "old", "zone": "z", "project": "p"}
    named = {"name": "vm", "runtimeVersion": "new", "zone": "z", "__defaults": []}
    change = provider(attribution=False).diff(VM, state, named)
    assert (change.replaces, change.delete_first) == (["runtimeVersion"], True)
    assert not provider(attribution=False).diff(VM, state, {**named, "__defaults": ["name"]}).delete_first
    assert not provider(attribution=False).diff(VM, state, {**named, "name": "other"}).delete_first


def test_an_unknown_value_of_a_fixed_property_previews_as_a_replacement() -> None:
    state = {"name": "s", "network": "projects/p/global/networks/n", "project": "p", "region": "r"}
    change = provider(region="r").diff(SUBNETWORK, state, {"name": "s", "network": UNKNOWN})
    assert change.replaces == ["network"]


@pytest.mark.parametrize(
    "spelling",
    [
        "n",
        "projects/p/global/networks/n",
        "https://www.googleapis.com/compute/v1/projects/p/global/networks/n",
    ],
)
def test_compute_takes_every_spelling_of_a_network_for_the_same(spelling: str) -> None:
    link = "https://www.googleapis.com/compute/v1/projects/p/global/networks/n"
    state = {"name": "s", "network": link, "project": "p", "region": "r"}
    assert provider(region="r").diff(SUBNETWORK, state, {"name": "s", "network": spelling}).differences == []
    other = spelling.removesuffix("n") + "m"
    assert provider(region="r").diff(SUBNETWORK, state, {"name": "s", "network": other}).replaces == [
        "network"
    ]


def test_ignored_changes_are_no_differences() -> None:
    state = {"name": "vm", "description": "old", "metadata": {"a": "1"}}
    news = {"name": "vm", "description": "new", "metadata": {"a": "2"}}
    diff = provider(attribution=False, zone="").diff(VM, state, news, ["description"])
    assert [d.path for d in diff.differences if d.path not in ("project",)] == ["metadata"]


def test_a_key_that_gcloud_wrote_into_the_metadata_is_taken_back_in_place() -> None:
    """`gcloud compute tpus tpu-vm ssh` without --plain writes `ssh-keys`: a refreshed state alone shows it,
    as a change in place and no replacement.
    """
    news = {"name": "vm", "metadata": {"tpu-run": "train"}}
    known = {**news, "project": "p", "zone": "z"}
    assert provider(attribution=False, zone="z").diff(VM, known, news).differences == []
    refreshed = {**known, "metadata": {"tpu-run": "train", "ssh-keys": "ada:ssh-ed25519 AAAA ada"}}
    change = provider(attribution=False, zone="z").diff(VM, refreshed, news)
    assert [(d.path, d.kind) for d in change.differences] == [("metadata", "UPDATE")]
    assert change.replaces == []


def test_labels_of_others_stay_and_lost_ones_come_back() -> None:
    mapping = {"a": "1", "goog-pulumi-provisioned": "true"}
    state = {"name": "d", "labels": {"a": "1"}, "pulumiLabels": mapping, "project": "p", "zone": "z"}
    news = {"name": "d", "labels": {"a": "1"}, "zone": "z"}
    foreign = {**state, "effectiveLabels": {**mapping, "theirs": "x"}}
    assert provider().diff(DISK, foreign, news).differences == []
    lost = {**state, "effectiveLabels": {"a": "1"}}
    assert [d.path for d in provider().diff(DISK, lost, news).differences] == [
        "pulumiLabels.goog-pulumi-provisioned"
    ]
    fewer = provider().diff(DISK, foreign, {**news, "labels": {}}).differences
    assert [(d.path, d.kind) for d in fewer] == [("labels.a", "DELETE")]
    gone = {**state, "effectiveLabels": {"goog-pulumi-provisioned": "true"}}
    assert provider().diff(DISK, gone, {**news, "labels": {}}).differences == []


def test_a_block_keeps_googles_entries_and_loses_those_that_the_program_drops() -> None:
    state = {"autoscaling": {"minNodeCount": 1, "maxNodeCount": 3, "locationPolicy": "ANY"}}
    news = {"autoscaling": {"maxNodeCount": 4}}
    planned = provider(region="r").update(POOL, "id", state, news, preview=True)
    assert planned["autoscaling"] == {"maxNodeCount": 4, "locationPolicy": "ANY"}
    paths = [d.path for d in provider(region="r").diff(POOL, {**state, "project": "p"}, news).differences]
    assert paths == ["autoscaling.maxNodeCount", "autoscaling.minNodeCount"]


def test_what_a_bucket_loses_is_sent_as_null() -> None:
    bucket = TYPES[BUCKET]
    planned = {"name": "b", "encryption": None, "logging": None}
    change = PlannedUpdate(planned, {}, {}, {"encryption", "logging"})
    assert bucket.written(create_autospec(Context), bucket.table.updates[0], change) == dict.fromkeys(
        ("encryption", "logging")
    )


@pytest.mark.parametrize(
    ("status", "verbs"),
    [("RUNNING", ["stop", "setMachineType", "start"]), ("TERMINATED", ["setMachineType"])],
)
def test_another_machine_type_needs_a_stop(status: str, verbs: list[str]) -> None:
    context = Mock()
    context.client.send.return_value = {"status": status, "disks": []}
    planned = {"name": "vm", "zone": "z", "project": "p", "machineType": "n2-standard-8"}
    change = PlannedUpdate({**planned, "allowStoppingForUpdate": True}, planned, {}, {"machineType"})
    instance = TYPES[INSTANCE]
    request = instance.table.updates[-1]
    instance.patch(context, request, change)
    posted = [call.args[2] for call in context.client.send.call_args_list if call.args[1] == "POST"]
    assert [path.rpartition("/")[2] for path in posted] == verbs
    if status == "RUNNING":
        with pytest.raises(StandInError, match="allow_stopping_for_update = true"):
            instance.patch(context, request, PlannedUpdate(planned, planned, {}, {"machineType"}))


def test_a_protected_resource_is_not_deleted_and_an_abandoned_one_is_left() -> None:
    with pytest.raises(StandInError, match="deletionPolicy"):
        provider().delete(NETWORK, "projects/p/global/networks/n", {"deletionPolicy": "PREVENT"})
    provider().delete(NETWORK, "projects/p/global/networks/n", {"deletionPolicy": "ABANDON"})


def test_a_missing_zone_names_the_setting() -> None:
    inputs = Provider().check(VM, {"runtimeVersion": "r", "name": "vm"}, {}, "vm", b"").inputs
    with pytest.raises(StandInError, match="zone: required field is not set") as missing:
        provider().create(VM, inputs)
    assert "gcp:zone" in missing.value.fix


def test_settings_come_from_the_program_then_the_environment() -> None:
    environment = {"GOOGLE_PROJECT": "from-environment", "GOOGLE_ZONE": "us-east5-b"}
    given = {"project": "given", "defaultLabels": '{"env":"dev"}', "addPulumiAttributionLabel": "false"}
    settings = Settings.of(given, environment)
    assert (settings.project, settings.zone, settings.location("region")) == (
        "given",
        "us-east5-b",
        "us-east5",
    )
    assert settings.effective_labels({"a": "1"}) == {"env": "dev", "a": "1"}
    assert unknown_settings({"project": "p", "impersonateServiceAccount": "x"}) == [
        "impersonateServiceAccount"
    ]


def test_endpoints_can_be_replaced_by_setting_and_by_variable() -> None:
    service = TYPES[VM].table.service
    by_setting = Settings(endpoints={"tpuV2CustomEndpoint": "http://one/"})
    assert by_setting.base(service, {}) == "http://one/"
    assert Settings().base(service, {"GOOGLE_TPU_V2_CUSTOM_ENDPOINT": "http://two"}) == "http://two/"
    assert Settings().base(service, {}) == "https://tpu.googleapis.com/v2alpha1/"


def test_values_survive_the_wire() -> None:
    asset = {
        "4dabf18193072939515e22adb298388d": "c44067f5952c0a294b673a41bacd8c17",
        "text": "hello",
        "hash": "h",
    }
    secret = {
        "4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270",
        "value": {"a": [1, 2.5]},
    }
    values = from_struct(to_struct({"asset": asset, "secret": secret, "unknown": UNKNOWN, "none": None}))
    assert values["asset"].read() == b"hello"
    assert values["secret"] == {"a": [1, 2.5]}
    assert values["unknown"] is UNKNOWN
    assert from_struct(to_struct(values)) == values
    a_bool, a_number = "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7", "3eeb2bf0-c639-47a8-9e75-3b44932eb421"
    unknown = from_struct(to_struct({"of the engine": [a_bool, a_number]}))
    assert unknown == {"of the engine": [UNKNOWN, UNKNOWN]}


@pytest.mark.parametrize("resource", TYPES.values(), ids=lambda item: item.table.token)
def test_exceptions_are_about_properties_that_the_type_has(resource: Resource) -> None:
    paths = list(paths_of(resource.table.fields, ""))
    for patterns in resource.table.exceptions:
        for pattern in patterns.split():
            if pattern not in SHARED_EXCEPTIONS:
                assert any(fnmatchcase(path, pattern) for path in paths), pattern


def paths_of(fields: tuple[Field, ...], prefix: str) -> Iterator[str]:
    for f in fields:
        yield prefix + f.name
        yield from paths_of(f.fields, f"{prefix}{f.name}.")
