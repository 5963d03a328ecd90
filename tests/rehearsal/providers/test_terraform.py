"""The stand-in agrees with the provider's own declarations, which were taken from its source."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from google_facts.terraform import type_name
from infra.engine.recovery.interrupted import REPEATED
from rehearsal.providers.gcp import suppress, terraform
from rehearsal.providers.gcp.field import Field, Kind
from rehearsal.providers.gcp.provider import Provider
from rehearsal.providers.gcp.settings import Settings
from rehearsal.providers.gcp.types import TYPES
from tools import provider_schema

TABLE = json.loads(terraform.TABLE.read_text())
KINDS = {
    "string": {Kind.STRING, Kind.ASSET}, "single": {Kind.STRING}, "int": {Kind.INT}, "float": {Kind.NUMBER},
    "bool": {Kind.BOOL}, "list": {Kind.LIST}, "set": {Kind.SET}, "map": {Kind.MAP, Kind.LABELS},
    "block": {Kind.BLOCK}, "blocks": {Kind.BLOCKS}, "blockset": {Kind.BLOCK_SET},
}  # fmt: skip
# What a type's own table says otherwise than the provider's schema, and why.
OTHERWISE = {
    **{
        f"gcp:compute/{token} eraseWindowsVssSignature default": "the plugin fills in no other zero"
        for token in ("disk:Disk", "instance:Instance")
    },
}


def fields(
    token: str, of: Sequence[Field], declared: terraform.Properties, path: str = ""
) -> Iterator[tuple[str, Field, terraform.Declared]]:
    """Yield all properties that a program can set, with their declarations."""
    for f in of:
        if f.output:
            continue
        about = terraform.find(declared, f.name)
        assert about is not None, f"{token} {path}{f.name}"
        yield f"{token} {path}{f.name}", f, about
        yield from fields(token, f.fields, about.nested, f"{path}{f.name}.")


@functools.cache
def every() -> list[tuple[str, Field, terraform.Declared]]:
    """Return the properties of all types: half a second."""
    return [
        item
        for token, resource in TYPES.items()
        for item in fields(token, resource.table.fields, terraform.resource_type(token).properties)
    ]


def test_every_property_replaces_defaults_and_is_computed_as_the_provider_declares() -> None:
    differing = []
    for name, f, declared in every():
        pairs = {
            "replaces": (f.replaces, declared.fixed),
            "computed": (f.computed, declared.computed),
            "default": (f.default, declared.default or None),
            "values": (f.one_of, declared.values),
            "kind": (f.kind in KINDS[declared.kind], True),
            "required": (f.required and not declared.required, False),
        }
        differing += [f"{name} {key}" for key, (own, official) in pairs.items() if own != official]
    assert differing == list(OTHERWISE)
    assert len(every()) > 900


def test_every_comparison_of_the_provider_is_known() -> None:
    unknown = {
        declared.suppress
        for _, f, declared in every()
        if declared.suppress and f.same is None and declared.suppress not in suppress.PLAIN
    }
    assert unknown == set()
    named = {entry["suppress"] for kind in TABLE["types"].values() for entry in kind["properties"].values()
             if isinstance(entry, dict) and "suppress" in entry}  # fmt: skip
    assert suppress.FUNCTIONS.keys() | suppress.PLAIN <= named
    assert not suppress.FUNCTIONS.keys() & suppress.PLAIN


def test_the_table_has_the_stand_ins_types_and_says_where_it_is_from() -> None:
    assert TABLE["types"].keys() == {type_name(token) for token in TYPES}
    assert re.fullmatch(r"https://github.com/\S+/tree/[0-9a-f]{40}", TABLE["source"])
    assert set(TABLE["types"]) <= set(provider_schema.command(TABLE).split())
    assert terraform.TABLE.stat().st_size < 200_000


def test_what_the_provider_cannot_import_is_made_again_after_a_kill() -> None:
    unimported = {token for token in TYPES if not terraform.resource_type(token).importer}
    assert unimported == {kind for kind in REPEATED if kind.startswith("gcp:")}


POOL = {"name": "p-0", "cluster": "tpu", "location": "l", "project": "p", "nodeLocations": ["l-a"]}
BLOCK = {"type": "COMPACT", "tpuTopology": "4x4"}
NO_ADDRESS = {"controlPlaneEndpointsConfig": {"ipEndpointsConfig": {"enabled": False}}}
CLUSTER = {"name": "tpu", "location": "l", "project": "p"}


def diff(token: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    provider = Provider()
    provider.configure(Settings(project="p", access_token="t", attribution=False))
    change = provider.diff(token, before, after)
    return [d.path for d in change.differences], change.replaces


@pytest.mark.parametrize(
    ("before", "after", "paths", "replaces"),
    [
        (
            {"placementPolicy": BLOCK, "nodeCount": 4},
            {"placementPolicy": {**BLOCK, "tpuTopology": "4x8"}, "nodeCount": 8},
            ["nodeCount", "placementPolicy.tpuTopology"],
            [],
        ),
        ({}, {"placementPolicy": BLOCK}, ["placementPolicy"], ["placementPolicy"]),
        ({"placementPolicy": BLOCK}, {}, ["placementPolicy"], ["placementPolicy"]),
        (
            {"nodeConfig": {"machineType": "ct6e-standard-1t", "diskSizeGb": 100}},
            {"nodeConfig": {"machineType": "ct6e-standard-4t", "diskSizeGb": 200}},
            ["nodeConfig.diskSizeGb", "nodeConfig.machineType"],
            [],
        ),
        (
            {"nodeConfig": {"spot": False}},
            {"nodeConfig": {"spot": True}},
            ["nodeConfig.spot"],
            ["nodeConfig"],
        ),
        ({"initialNodeCount": 1}, {"initialNodeCount": 0}, ["initialNodeCount"], ["initialNodeCount"]),
        (
            {"nodeConfig": {"resourceLabels": {"a": "1", "goog-gke-node": ""}}},
            {"nodeConfig": {"resourceLabels": {"a": "1"}}},
            [],
            [],
        ),
    ],
)
def test_a_change_in_a_fixed_block_replaces_a_pool_only_where_it_is_fixed_itself(
    before: dict[str, Any], after: dict[str, Any], paths: list[str], replaces: list[str]
) -> None:
    """A new topology is sent in place, which GKE refuses: the program has to say otherwise."""
    assert diff("gcp:container/nodePool:NodePool", {**POOL, **before}, {**POOL, **after}) == (paths, replaces)


@pytest.mark.parametrize(
    ("before", "after", "paths", "replaces"),
    [
        (
            {},
            {"authenticatorGroupsConfig": {"securityGroup": "gke-security-groups@example.com"}},
            ["authenticatorGroupsConfig"],
            [],
        ),
        ({"authenticatorGroupsConfig": {"securityGroup": "g@example.com"}}, {}, [], []),
        ({"description": "old"}, {"description": "new"}, ["description"], ["description"]),
        (
            {"loggingConfig": {"enableComponents": ["A", "B"]}},
            {"loggingConfig": {"enableComponents": ["B", "A"]}},
            [],
            [],
        ),
        (
            {"privateClusterConfig": {"enablePrivateNodes": True, "enablePrivateEndpoint": True}},
            {"privateClusterConfig": {"enablePrivateNodes": True}},
            ["privateClusterConfig.enablePrivateEndpoint"],
            [],
        ),
        (
            {
                "privateClusterConfig": {"enablePrivateNodes": True, "enablePrivateEndpoint": True},
                **NO_ADDRESS,
            },
            {"privateClusterConfig": {"enablePrivateNodes": True}, **NO_ADDRESS},
            [],
            [],
        ),
    ],
)
def test_a_cluster_is_replaced_only_by_what_is_fixed(
    before: dict[str, Any], after: dict[str, Any], paths: list[str], replaces: list[str]
) -> None:
    assert diff("gcp:container/cluster:Cluster", {**CLUSTER, **before}, {**CLUSTER, **after}) == (
        paths,
        replaces,
    )


def test_a_network_takes_another_mtu_in_place_and_no_other_description() -> None:
    network = {"name": "n", "project": "p", "mtu": 1460, "description": "old"}
    changed = {**network, "mtu": 8896}
    assert diff("gcp:compute/network:Network", network, changed) == (["mtu"], [])
    assert diff("gcp:compute/network:Network", network, {**network, "description": "new"})[1] == [
        "description"
    ]


@pytest.mark.parametrize(
    "token", ["gcp:storage/bucketObject:BucketObject", "gcp:projects/serviceIdentity:ServiceIdentity"]
)
def test_what_the_provider_cannot_import_is_not_found_by_its_id(token: str) -> None:
    """No request is sent: there is no server here."""
    assert Provider().read(token, "bucket/name", {}) is None


def test_a_subnet_and_a_disk_grow_in_place_and_shrink_by_a_new_one() -> None:
    """As the provider's code has it, beside its schema."""
    subnet = {"name": "s", "network": "n", "region": "r", "project": "p", "ipCidrRange": "10.9.0.0/23"}
    for cidr, replaces in (("10.9.0.0/22", []), ("10.9.0.0/24", ["ipCidrRange"])):
        changed = {**subnet, "ipCidrRange": cidr}
        assert diff("gcp:compute/subnetwork:Subnetwork", subnet, changed) == (["ipCidrRange"], replaces)
    disk = {"name": "d", "zone": "z", "project": "p", "size": 100}
    for size, replaces in ((200, []), (50, ["size"])):
        assert diff("gcp:compute/disk:Disk", disk, {**disk, "size": size}) == (["size"], replaces)
