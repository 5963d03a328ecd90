"""Declarations of the TPU layer, and its use of other layers' outputs."""

from typing import Any

import pulumi
import pytest

from infra.layers.tpu import startup
from infra.layers.tpu.request import member_request
from infra.layers.tpu.v2_vm import timeouts
from infra.settings.schema import LOGIN, SSH
from infra.slices.names import member_labels
from infra.slices.nodes import nodes
from tests.infra.recording import BASE, UPSTREAM, EngineError, Recording, parsed, run

NODE = "gcp:tpu/v2Vm:V2Vm"


def only_slice(**changes: Any) -> dict[str, Any]:
    slice_ = {key: value for key, value in {**BASE["tpu:slices"][0], **changes}.items() if value is not None}
    return {"tpu:slices": [slice_], "data:throughputMibps": 12_800}  # enough for two whole pods


@pytest.mark.parametrize("preview", [True, False])
def test_a_node_stands_on_what_the_other_layers_made(preview: bool) -> None:
    node = run("tpu", only_slice(labels={"owner": "ml"}), preview=preview).only(NODE)
    metadata = node.inputs.pop("metadata")
    assert node.inputs == {
        "name": "train",
        "zone": "us-east5-b",
        "description": "v6e-16 (4x4), 4 host(s)",
        "acceleratorType": "v6e-16",
        "runtimeVersion": "v2-alpha-tpuv6e",
        "networkConfig": {
            "network": "projects/my-project/global/networks/up",
            "subnetwork": "projects/my-project/regions/us-east5/subnetworks/up",
            "enableExternalIps": False,
            "canIpForward": False,
        },
        "serviceAccount": {
            "email": "up@my-project.iam.gserviceaccount.com",
            "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
        },
        "dataDisks": [{"sourceDisk": "projects/my-project/zones/us-east5-b/disks/up", "mode": "READ_ONLY"}],
        "schedulingConfig": {"preemptible": False, "spot": True, "reserved": False},
        "shieldedInstanceConfig": {"enableSecureBoot": True},
        "tags": ["tpu-slice"],
        "labels": {"owner": "ml", "slice": "train"},
    }
    assert metadata == {
        "startup-script": startup.loader(),
        "tpu-slice": "train",
        "tpu-slice-name": "train",
        "tpu-zone": "us-east5-b",
        "tpu-workers": "4",
        "tpu-bucket": "bucket-that-is-up",
        "tpu-steps-bucket": "steps-bucket-that-is-up",
        "tpu-bundle": "ab" * 32,
        "tpu-data-disk": "up",
        "tpu-run": "train tiny.toml",
        "tpu-metadata-timeout-s": "3600",
        "tpu-barrier-timeout-s": "900",
        "enable-guest-attributes": "TRUE",
        "enable-oslogin": "TRUE",
        "block-project-ssh-keys": "TRUE",
        "serial-port-enable": "FALSE",
    }
    assert node.options["deleteBeforeReplace"] is True
    assert node.options["customTimeouts"] == {"create": "21m", "update": "30m", "delete": "30m"}


@pytest.mark.parametrize("users", [["group:ml@example.com"], []])
def test_a_node_waits_until_its_maker_may_act_as_the_hosts_account(users: list[str]) -> None:
    node = run("tpu", {"storage:serviceAccountUsers": users}).only(NODE)
    assert node.options.get("hooks", {}).get("beforeCreate") == (["may-act"] if users else None)


def test_ids_are_never_links() -> None:
    for recording in (run("tpu"), run("tpu", preview=True, up={})):
        inputs = recording.only(NODE).inputs
        ids = [
            inputs["networkConfig"]["network"],
            inputs["networkConfig"]["subnetwork"],
            inputs["dataDisks"][0]["sourceDisk"],
        ]
        assert all(item.startswith("projects/my-project/") for item in ids)


def test_a_slice_that_starts_nothing_and_reads_nothing() -> None:
    node = run("tpu", {**only_slice(run=None), "data:snapshot": None}).only(NODE)
    assert not {"tpu-run", "tpu-data-disk"} & node.inputs["metadata"].keys()
    assert "dataDisks" not in node.inputs


@pytest.mark.parametrize(
    ("changes", "scheduling"),
    [
        ({"spot": None}, None),
        ({"spot": True}, {"preemptible": False, "spot": True, "reserved": False}),
        ({"spot": None, "reserved": True}, {"preemptible": False, "spot": False, "reserved": True}),
    ],
)
def test_how_it_is_paid(changes: dict[str, Any], scheduling: dict[str, bool] | None) -> None:
    assert run("tpu", only_slice(**changes)).only(NODE).inputs.get("schedulingConfig") == scheduling


def test_images_and_hardening_can_be_chosen() -> None:
    changes = {
        **only_slice(runtimeVersion="my-image"),
        "tpu:osLogin": False,
        "tpu:secureBoot": False,
        "tpu:barrierTimeoutS": 60,
        "tpu:metadataTimeoutS": 600,
    }
    inputs = run("tpu", changes).only(NODE).inputs
    assert inputs["runtimeVersion"] == "my-image"
    assert inputs["metadata"]["enable-oslogin"] == "FALSE"
    assert inputs["metadata"]["tpu-barrier-timeout-s"] == "60"
    assert inputs["metadata"]["tpu-metadata-timeout-s"] == "600"
    assert inputs["shieldedInstanceConfig"] == {"enableSecureBoot": False}


def test_patience_grows_with_the_hosts() -> None:
    assert [timeouts(hosts).create for hosts in (1, 4, 16, 64)] == ["20m", "21m", "29m", "60m"]


def test_a_whole_pod_has_64_hosts() -> None:
    node = run("tpu", only_slice(acceleratorType=None, topology="16x16", spot=None)).only(NODE)
    assert node.inputs["acceleratorType"] == "v6e-256"
    assert node.inputs["metadata"]["tpu-workers"] == "64"


MEMBERS = {
    "name": "extract",
    "acceleratorType": "v6e-8",
    "count": 3,
    "labels": {"owner": "ml"},
    "run": "extract qwen2.5-0.5b.toml --stream gs://b/s",
}


@pytest.mark.parametrize("preview", [True, False])
def test_a_fleet_is_not_pulumis_and_its_command_is_said(preview: bool) -> None:
    recording = run("tpu", only_slice(**MEMBERS), preview=preview)
    assert not recording.of(NODE)
    create = "tpu fleet create dev --slice extract"
    assert recording.exports["fleets"] == [{"name": "extract", "count": 3, "create": create}]
    assert recording.exports["slices"] == []
    assert any(create in line and "3 x v6e-8 in us-east5-b" in line for line in recording.log)


def test_a_stack_has_an_id_whatever_slices_are_listed() -> None:
    for changes in ({}, only_slice(**MEMBERS), {"tpu:slices": [], "tpu:bundle": None}):
        recording = run("tpu", changes)
        mark = recording.named("pulumi-python:dynamic:Resource", "stack")
        assert "pulumi:providers:pulumi-python::stack::" in mark.options["provider"]
        assert recording.exports["stackId"] == "stack-id", "as the mock calls it"
    assert run("tpu", preview=True).exports["stackId"] == "unknown"


def test_a_named_slice_and_a_member_are_asked_for_in_the_same_words() -> None:
    """Pulumi sends one, the fleet's controller the other; only who they are differs."""
    alike = {
        "acceleratorType": "v6e-8",
        "labels": {"owner": "ml"},
        "run": "extract qwen2.5-0.5b.toml --stream gs://b/s",
    }
    changes = {**only_slice(**alike), "gcp:defaultLabels": {"team": "ml"}}
    inputs = run("tpu", changes, preview=True, up={}).only(NODE).inputs
    fleet = {**changes, **only_slice(**alike, name="extract", count=1)}
    settings = parsed({**BASE, **fleet})
    (member,) = nodes(settings)
    own = member_labels("dev", "extract", 0, "1a2b3c4")
    body = member_request(settings, member, {**member.labels, **own})
    sent = {key: value for key, value in inputs.items() if key not in ("name", "zone")}
    sent["serviceAccount"]["scope"] = sent["serviceAccount"].pop("scopes")
    assert sent.pop("labels") == {"owner": "ml", "slice": "train"}, "the provider adds the default ones"
    assert body.pop("labels") == {"team": "ml", "owner": "ml", **own}
    output, reported = sent.pop("metadata"), body.pop("metadata")
    assert sent == body
    differs = {key for key in output.keys() | reported.keys() if output.get(key) != reported.get(key)}
    assert differs == {"tpu-slice", "tpu-slice-name", "tpu-member"}


def test_slices_that_run_one_job_together_are_told_of_one_another() -> None:
    together = {"name": "big", "acceleratorType": "v6e-256", "count": 2, "run": "train tiny.toml"}
    changes = {**BASE, **only_slice(**together, multislice=True)}
    settings = parsed(changes)
    reported = [member_request(settings, node, {})["metadata"] for node in nodes(settings)]
    for metadata in reported:
        assert metadata["tpu-job"] == "big"
        assert metadata["tpu-slices"] == "tpu-us-east5-b-0,tpu-us-east5-b-1"
        assert metadata["tpu-workers"] == "64", "of its own hosts alone"
    assert [item["tpu-slice"] for item in reported] == ["tpu-us-east5-b-0", "tpu-us-east5-b-1"]
    alone = run("tpu").only(NODE).inputs["metadata"]
    assert not {"tpu-job", "tpu-slices", "tpu-member"} & alone.keys()


def test_outputs() -> None:
    exports = run("tpu").exports
    assert exports["bundle"] == "ab" * 32
    (slice_,) = exports["slices"]
    commands = slice_.pop("usefulCommands")
    assert slice_ == {
        "name": "train",
        "zone": "us-east5-b",
        "acceleratorType": "v6e-16",
        "hosts": 4,
        "state": "READY",
        "addresses": ["10.64.32.2"],
    }
    ssh = SSH.format(login=f"$({LOGIN})", node="train", project="my-project", zone="us-east5-b")
    assert commands == {
        "ssh": f"{ssh} --worker=0",
        "sshAll": f"{ssh} --worker=all --command='hostname'",
        "bootLog": f"{ssh} --worker=all --command='sudo tail -n 50 /var/log/tpu/boot.log'",
        "jobLog": f"{ssh} --worker=0 --command='sudo journalctl --unit=tpu-job.service --follow'",
        "logs": 'gcloud logging read \'logName="projects/my-project/logs/tpu-host" AND labels.node="train"'
        ' AND labels.worker="0"\' --project=my-project --order=asc'
        " --format='value(timestamp,textPayload,jsonPayload.message)'",
        "bootStatus": "gcloud storage cat 'gs://bucket-that-is-up/boot/train/worker-*.json'",
        "describe": "gcloud compute tpus tpu-vm describe train --project=my-project --zone=us-east5-b",
        "recover": "tpu recover dev",
        "delete": "gcloud compute tpus tpu-vm delete train --project=my-project --zone=us-east5-b",
    }


def test_a_preview_before_anything_is_up_takes_the_ids_that_will_be() -> None:
    recording = run("tpu", preview=True, up={})
    inputs = recording.only(NODE).inputs
    network = run("network").exports
    assert inputs["networkConfig"]["network"] == network["networkId"]
    assert inputs["networkConfig"]["subnetwork"] == network["subnetIds"]["us-east5"]
    assert inputs["dataDisks"][0]["sourceDisk"] == run("data").exports["diskIds"]["us-east5-b"]
    storage = run("storage").exports
    assert inputs["metadata"]["tpu-bucket"] == storage["bucketName"]
    assert inputs["serviceAccount"]["email"] == storage["serviceAccountEmail"]
    will_be = "projects/my-project/global/networks/tpu-training"
    output = f"network is not up yet: this preview takes {will_be} for its networkId"
    assert output in recording.log
    requests = {token for token, _, _ in recording.calls}
    assert requests == {"pulumi:pulumi:readStackOutputs"}, "there is no bucket yet to look into"


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("storage", "storage is not up; run this first: tpu up dev storage"),
        ("network", "network is not up; run this first: tpu up dev network"),
        ("data", "data is not up; run this first: tpu up dev data"),
    ],
)
def test_an_update_names_the_command_that_comes_first(missing: str, message: str) -> None:
    up = {layer: outputs for layer, outputs in UPSTREAM.items() if layer != missing}
    with pytest.raises(pulumi.RunError) as caught:
        run("tpu", up=up)
    assert str(caught.value) == message


def test_a_layer_that_was_destroyed_is_not_up() -> None:
    with pytest.raises(pulumi.RunError, match=r"^network is not up; run this first"):
        run("tpu", up={**UPSTREAM, "network": {}})


def test_a_zone_that_the_data_layer_does_not_serve_yet() -> None:
    up = {**UPSTREAM, "data": {"diskIds": {"us-east5-a": "projects/p/zones/us-east5-a/disks/d"}}}
    with pytest.raises(pulumi.RunError) as caught:
        run("tpu", up=up)
    assert str(caught.value) == (
        "data has no output diskIds[us-east5-b] (is it up with the present settings?); "
        "run this first: tpu up dev data"
    )


@pytest.mark.parametrize(
    ("changes", "published", "message"),
    [
        (
            {"tpu:bundle": None},
            False,
            "tpu:bundle: no bundle was published for the hosts to install\n    fix: tpu publish dev",
        ),
        (
            {},
            False,
            f"tpu:bundle: gs://bucket-that-is-up/bundles/manifests/{'ab' * 32} does not exist\n"
            "    fix: tpu publish dev",
        ),
    ],
)
def test_no_slice_is_created_whose_bundle_is_not_there(
    changes: dict[str, Any], published: bool, message: str
) -> None:
    with pytest.raises(pulumi.RunError) as caught:
        run("tpu", changes, published=published)
    assert str(caught.value) == message
    preview = run("tpu", changes, published=published, preview=True)
    assert message in preview.log
    assert len(preview.of(NODE)) == 1


def test_a_start_up_script_that_was_never_published_is_refused_and_nothing_else_of_a_checkout_is() -> None:
    script = f"gs://bucket-that-is-up/bundles/blobs/{startup.script_sha256()}"
    with pytest.raises(pulumi.RunError) as caught:
        run("tpu", missing=script)
    assert str(caught.value) == (
        f"tpu:bundle: this checkout's start-up script, {script} does not exist\n    fix: tpu publish dev"
    )
    assert str(caught.value) in run("tpu", missing=script, preview=True).log
    # An older bundle, whose script was another one, is gone back to by its id alone.
    assert run("tpu", {"tpu:bundle": "cd" * 32}).only(NODE).inputs["metadata"]["tpu-bundle"] == "cd" * 32


def test_a_bundle_that_can_not_be_looked_up_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = "404" + "ab" * 30 + "c"

    def refuse(self: Recording, args: Any) -> Any:
        if args.token.endswith(":getBucketObject"):
            raise EngineError(
                f"googleapi: Error 403: no storage.objects.get on {args.args['name']}, forbidden"
            )
        return answer(self, args)

    answer = Recording.call
    monkeypatch.setattr(Recording, "call", refuse)
    with pytest.raises(pulumi.RunError, match=r"manifests/404abab.*can't be looked up: .*Error 403"):
        run("tpu", {"tpu:bundle": bundle})


def test_the_bundle_is_looked_up_through_the_explicit_provider() -> None:
    requests = [provider for token, _, provider in run("tpu").calls if token.endswith(":getBucketObject")]
    assert len(requests) == 2
    assert all("pulumi:providers:gcp::gcp::" in provider for provider in requests)


def test_no_slices_need_no_bundle() -> None:
    recording = run("tpu", {"tpu:slices": [], "tpu:bundle": None}, published=False)
    assert not recording.of(NODE)
    assert recording.exports["slices"] == []
