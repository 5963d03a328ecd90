"""Slices, hosts, Slurm's lists of hosts, and the fleet's records of slices."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.engine.settings import from_file
from infra.layers.slurm import names, slices
from infra.layers.slurm.settings import SlurmSettings
from infra.layers.slurm.slices import NameListError, Reached, SlurmSlice
from infra.layers.tpu.request import member_request
from infra.settings import commands
from infra.slices.nodes import nodes
from tests.infra.layers.slurm.cluster import SMALL, TPU, settings

REACHED = Reached("10.64.32.9", "10.64.32.9:/home")
_SLICES = st.builds(SlurmSlice, st.sampled_from(["tpu", "tpu-7", "a"]), st.integers(0, 300))


def test_static_slices_are_the_first_ones() -> None:
    known = settings()
    assert [slice_.name for slice_ in slices.slices(known)] == ["tpu-0", "tpu-1", "tpu-2", "small-0"]
    assert [slice_.name for slice_ in slices.static(known)] == ["tpu-0"]
    assert slices.hosts(known, SlurmSlice("tpu", 2)) == [f"tpu-2-w{worker}" for worker in range(4)]


@pytest.mark.parametrize("slice_", [SlurmSlice("tpu", 3), SlurmSlice("other", 0)])
def test_a_slice_beyond_the_settings_has_neither_hosts_nor_a_record(slice_: SlurmSlice) -> None:
    for function in (slices.hosts, lambda known, what: slices.record(known, what, REACHED)):
        with pytest.raises(NameListError, match=slice_.name):
            function(settings(), slice_)


def test_only_the_static_count_makes_a_nodeset_of_static_slices_alone() -> None:
    (nodeset,) = slices.nodesets(settings({**TPU, "nodeCountDynamicMax": 0}))
    assert (nodeset.static, nodeset.count) == (1, 1)


# What `scontrol show hostnames` of 22.05.8 prints, or refuses as an invalid list.
@pytest.mark.parametrize(("text", "expected"), [
    ("", []),
    ("tpu-3-w1", ["tpu-3-w1"]),
    ("a-[0-1]-w[0-1]", ["a-0-w0", "a-0-w1", "a-1-w0", "a-1-w1"]),
    ("b-[2-4,7]-w[0],c-0", ["b-2-w0", "b-3-w0", "b-4-w0", "b-7-w0", "c-0"]),
    ("a-0-w[0-1],a-1-w[0-1],a-10-w3", ["a-0-w0", "a-0-w1", "a-1-w0", "a-1-w1", "a-10-w3"]),
    ("a[08-10]", ["a08", "a09", "a10"]),
])  # fmt: skip
def test_a_list_of_slurms_is_read_as_slurm_reads_it(text: str, expected: list[str]) -> None:
    assert slices.expand(text) == expected


@pytest.mark.parametrize("text", ["a-[0-1", "a-0-1]", "a-[x]", "a-[1-]", "a b", ",", "a,,b"])
def test_a_text_that_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(NameListError):
        slices.expand(text)


@given(st.sets(st.tuples(_SLICES, st.integers(0, 70)), max_size=40))
def test_hosts_survive_as_a_list(chosen: set[tuple[SlurmSlice, int]]) -> None:
    hosts = [slice_.host(worker) for slice_, worker in chosen]
    text = ",".join(f"{slice_.name}-w[{worker}]" for slice_, worker in chosen)
    assert sorted(slices.expand(text)) == sorted(hosts)
    assert {slices.of_host(name) for name in hosts} == chosen


@pytest.mark.parametrize("name", ["tpu-0", "tpu-w1", "t1v-n-0a-w-1", "tpu-0-w", "tpu-x-w1", ""])
def test_another_machines_name_is_no_hosts(name: str) -> None:
    with pytest.raises(NameListError):
        slices.of_host(name)


def test_a_record_is_one_of_the_fleets_that_hosts_can_start() -> None:
    mounts = [{"server": "10.0.0.9", "remote": "/x", "local": "/data", "options": "ro,nconnect=4"}]
    more = {
        "networkStorage": mounts,
        "startupScript": "gs://b/scripts/up.sh",
        "fallbackZones": ["us-east5-a"],
    }
    known = settings({**TPU, **more}, SMALL, tpu__zones=["us-east5-a"])
    record = slices.record(known, SlurmSlice("tpu", 1), REACHED)
    assert record == {
        "name": "tpu-1", "acceleratorType": "v6e-16", "zones": ["us-east5-b"], "count": 1,
        "fallbackZones": ["us-east5-a"], "labels": {"slurm": "slurm-dev"},
        "run": f"slurmd 10.64.32.9 tpu-1 {'cd' * 32} projects/my-project/secrets/slurm-dev-munge "
        "10.64.32.9:/home --startup=gs://b/scripts/up.sh --mount=nfs,10.0.0.9,/x,/data,ro:nconnect=4",
        "owner": {"who": "slurm-dev-controller@my-project.iam.gserviceaccount.com", "from": "slurm dev"},
    }  # fmt: skip
    assert len(commands.split(record["run"])) == 8
    json.dumps(record)


@pytest.mark.parametrize(("labels", "tags"), [
    ({"slurm": "slurm-dev"}, ["tpu-slice", "slurm-dev-host"]), ({"slurm": "no_tag"}, ["tpu-slice"]),
    ({"team": "ml"}, ["tpu-slice"]),
])  # fmt: skip
def test_hosts_of_a_cluster_have_a_tag_that_other_slices_lack(
    labels: dict[str, str], tags: list[str]
) -> None:
    record = slices.record(settings(), SlurmSlice("tpu", 1), REACHED)
    assert record["labels"] == {"slurm": "slurm-dev"}
    (member, *_) = nodes(settings())
    assert member_request(settings(), member, labels)["tags"] == tags


def test_provisioning_and_image_of_a_nodeset_are_those_of_its_records() -> None:
    image = {**SMALL, "runtimeVersion": "my-image"}
    record = slices.record(settings(image), SlurmSlice("small", 0), REACHED)
    assert (record["spot"], record["runtimeVersion"], record.get("reserved")) == (True, "my-image", None)


def test_names_of_the_cluster_follow_from_one_setting() -> None:
    known = settings(name="train", loginCount=2)
    assert names.logins(known) == ["train-login-0", "train-login-1"]
    assert names.controller(known) == "train-controller"
    assert names.munge_secret_id(known) == "projects/my-project/secrets/train-munge"
    bare = settings(zone="us-east5-a", tpu__zones=["us-east5-a"])
    assert (names.name(bare), names.zone(bare), names.region(bare)) == ("slurm-dev", "us-east5-a", "us-east5")
    assert names.zone(settings()) == "us-east5-b", "the first nodeset's"


def test_a_nodesets_slices_arent_slices_of_the_file() -> None:
    assert {node.slice for node in nodes(settings())} == {"train"}
    assert from_file("dev").get(SlurmSettings) is None
    assert replace(SlurmSlice("a", 0), number=1) > SlurmSlice("a", 0)
