"""Declarations of the slurm layer: machines, disk, secret, grants, ports, prices and outputs."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pulumi
import pytest

from infra.core.secrets import ACCESSOR
from infra.engine import prices, registry
from infra.engine.settings import parse
from infra.layers.slurm import access, firewall, names, program
from infra.layers.slurm.outputs import SlurmOutputs
from infra.prices.row import PriceRow
from infra.settings.schema import ADDED_SLICES
from infra.settings.sources import as_pulumi_hands_it_over
from rehearsal.cloud.iam.conditions import compile_condition
from tests.infra.declared import UP
from tests.infra.layers.slurm.cluster import SMALL, TPU, settings
from tests.infra.recording import BASE, UNKNOWN, Recording, run

INSTANCE, DISK, ADDRESS = (
    f"gcp:compute/{name}:{name.capitalize()}" for name in ("instance", "disk", "address")
)
FIREWALL, SECRET = "gcp:compute/firewall:Firewall", "gcp:secretmanager/secret:Secret"
SECRET_MEMBER = "gcp:secretmanager/secretIamMember:SecretIamMember"
BUCKET_MEMBER = "gcp:storage/bucketIAMMember:BucketIAMMember"
CLUSTER: dict[str, Any] = {"slurm:nodesets": [TPU, SMALL], "slurm:bundle": "cd" * 32}
SUBNET = UP["network"]["subnetIds"]["us-east5"]
LAYER = registry.named("slurm")


def up(preview: bool = False, into: list[Recording] | None = None, **more: Any) -> Recording:
    named = {f"slurm:{key}": value for key, value in more.items()}
    return run("slurm", {**CLUSTER, **named}, preview=preview, up=UP, into=into)


def member(role: str) -> str:
    return f"serviceAccount:slurm-dev-{role}@my-project.iam.gserviceaccount.com"


@pytest.mark.parametrize("preview", [True, False])
def test_the_controller_has_its_disk_and_its_address_and_no_way_out(preview: bool) -> None:
    recording = up(preview)
    machine = recording.named(INSTANCE, "slurm-dev-controller").inputs
    metadata = machine.pop("metadata")
    assert re.fullmatch(r"slurm/slurm-dev/([0-9a-f]{64})\.zip \1", metadata.pop("slurm-program"))
    assert "startup.sh" in metadata.pop("startup-script")
    assert metadata == {
        "tpu-slice": "slurm-dev-controller", "tpu-bucket": "bucket-that-is-up", "tpu-bundle": "cd" * 32,
        "tpu-zone": "us-east5-b",
        "slurm-role": "controller", "slurm-environment": "dev", "slurm-stack": "0123abc",
        "slurm-controller": "10.64.32.9" if not preview else UNKNOWN,
        "slurm-home": "10.64.32.9:/home" if not preview else UNKNOWN,
        "slurm-munge": "projects/my-project/secrets/slurm-dev-munge",
        "enable-guest-attributes": "TRUE", "enable-oslogin": "TRUE", "block-project-ssh-keys": "TRUE",
        "serial-port-enable": "FALSE",
    }  # fmt: skip
    assert machine == {
        "name": "slurm-dev-controller", "zone": "us-east5-b", "machineType": "n2-standard-4",
        "description": "Slurm controller of slurm-dev", "tags": ["slurm-dev-controller"],
        "bootDisk": {"initializeParams": {
            "image": "projects/debian-cloud/global/images/family/debian-12",
            "size": 20, "type": "pd-balanced",
        }},
        "attachedDisks": [{
            "source": UNKNOWN if preview else "projects/my-project/zones/us-east5-b/disks/slurm-dev-state",
            "deviceName": "slurm-state", "mode": "READ_WRITE",
        }],
        "networkInterfaces": [{"subnetwork": SUBNET, "networkIp": UNKNOWN if preview else "10.64.32.9"}],
        "serviceAccount": {
            "email": "slurm-dev-controller@my-project.iam.gserviceaccount.com",
            "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
        },
        "shieldedInstanceConfig": {
            "enableSecureBoot": True, "enableVtpm": True, "enableIntegrityMonitoring": True,
        },
        "allowStoppingForUpdate": True,
    }  # fmt: skip
    assert recording.only(ADDRESS).inputs == {
        "name": "slurm-dev-controller", "region": "us-east5", "addressType": "INTERNAL",
        "subnetwork": SUBNET,
        "description": "Slurm controller, where hosts and login nodes find it",
    }  # fmt: skip


def test_the_state_outlives_its_stack() -> None:
    disk = up().only(DISK)
    assert disk.inputs == {
        "name": "slurm-dev-state", "zone": "us-east5-b", "type": "pd-balanced", "size": 100,
    }  # fmt: skip
    assert (disk.options["protect"], disk.options["retainOnDelete"]) == (True, True)


def test_a_disk_that_a_destroyed_stack_left_is_attached_as_it_is() -> None:
    left = "projects/my-project/zones/us-east5-b/disks/slurm-dev-state"
    recording = up(existingStateDisk=left)
    assert recording.of(DISK) == []
    (disk,) = recording.named(INSTANCE, "slurm-dev-controller").inputs["attachedDisks"]
    assert disk["source"] == left
    assert left not in LAYER.at_google(settings(existingStateDisk=left))


def test_login_nodes_find_the_controller_and_run_as_their_own_account() -> None:
    recording = up(loginCount=2, loginMachineType="e2-standard-2")
    machines = [item for item in recording.of(INSTANCE) if "login" in item.name]
    assert [item.name for item in machines] == ["slurm-dev-login-0", "slurm-dev-login-1"]
    inputs = machines[1].inputs
    assert inputs["networkInterfaces"] == [{"subnetwork": SUBNET}], "no external address"
    assert inputs["metadata"]["slurm-controller"] == "10.64.32.9"
    assert inputs["metadata"]["slurm-role"] == "login"
    assert inputs["serviceAccount"]["email"] == member("login").partition(":")[2]
    assert "attachedDisks" not in inputs
    assert inputs["machineType"] == "e2-standard-2"


def test_home_may_be_on_filestore() -> None:
    recording = up(homeStorage="filestore", filestoreTier="REGIONAL")
    home = recording.only("gcp:filestore/instance:Instance")
    assert home.inputs == {
        "name": "slurm-dev-home", "location": "us-east5", "tier": "REGIONAL",
        "fileShares": {"name": "home", "capacityGb": 1024},
        "networks": [{"network": UP["network"]["networkId"], "modes": ["MODE_IPV4"]}],
        "description": "/home of slurm-dev",
    }  # fmt: skip
    assert (home.options["protect"], home.options["retainOnDelete"]) == (True, True)
    assert {item.inputs["metadata"]["slurm-home"] for item in recording.of(INSTANCE)} == {"10.64.48.2:/home"}
    assert "2049" not in str([item.inputs["allows"] for item in recording.of(FIREWALL)])
    assert "file.googleapis.com" in LAYER.services(settings(homeStorage="filestore"))
    assert "file.googleapis.com" not in LAYER.services(settings())


def test_munges_key_is_in_no_state_and_only_the_controller_adds_it() -> None:
    recording = up()
    assert recording.only(SECRET).inputs == {
        "secretId": "slurm-dev-munge",
        "replication": {"userManaged": {"replicas": [{"location": "us-east5"}]}},
    }
    assert not [item for item in recording.resources if "secretVersion" in item.type]
    granted = {(item.inputs["member"], item.inputs["role"]) for item in recording.of(SECRET_MEMBER)}
    hosts = "serviceAccount:tpu-training@my-project.iam.gserviceaccount.com"
    assert granted == {
        *((who, ACCESSOR) for who in (member("controller"), member("login"), hosts)),
        (member("controller"), access.ADDER),
    }


def test_only_the_controller_may_touch_slices_and_records() -> None:
    recording = up()
    roles = {
        (item.inputs["member"], item.inputs["role"])
        for item in recording.of("gcp:projects/iAMMember:IAMMember")
    }
    own = "projects/my-project/roles/slurm_dev_controller_slices"
    assert roles == {
        (member("controller"), own),
        *((member(role), access.LOG_WRITER) for role in names.ROLES),
    }
    assert {role for _, role in roles} == set(LAYER.grants(settings()))
    (custom,) = recording.of("gcp:projects/iAMCustomRole:IAMCustomRole")
    assert custom.inputs["permissions"] == list(access.PERMISSIONS)
    writes = {
        (item.inputs["member"], item.inputs["bucket"]): item.inputs["condition"]["expression"]
        for item in recording.of(BUCKET_MEMBER)
        if item.inputs["role"] == access.OBJECT_USER
    }
    fleet = "my-project-checkpoints-fleet"
    assert {bucket for who, bucket in writes if who == member("login")} == {"my-project-checkpoints"}
    records = compile_condition(writes[member("controller"), fleet])
    assert records(f"projects/_/buckets/{fleet}/objects/0123abc/fleets/tpu-0.json", "", frozenset())
    assert not records(f"projects/_/buckets/{fleet}/objects/other/fleets/tpu-0.json", "", frozenset())


@pytest.mark.parametrize(("role", "machine", "fine"), [
    ("login", "slurm-dev-login-0", True), ("login", "slurm-dev-controller", False),
    ("login", "train", False), ("controller", "slurm-dev-controller", True),
])  # fmt: skip
def test_a_machine_reports_its_own_boot_alone(role: str, machine: str, fine: bool) -> None:
    (own,) = [grant for grant in access.on_buckets(settings(), role) if grant.why == "own status"]
    path = f"projects/_/buckets/my-project-checkpoints/objects/boot/{machine}/worker-0.json"
    assert compile_condition(own.only)(path, "", frozenset()) is fine


def test_a_login_reads_bundle_and_program_and_nobodys_checkpoints() -> None:
    for role in names.ROLES:
        (read,) = [item for item in access.on_buckets(settings(), role) if item.why == "bundle and program"]
        allowed = compile_condition(read.only)
        objects = "projects/_/buckets/my-project-checkpoints/objects"
        for name in ("bundles/manifests/a", "bundles/blobs/b", "slurm/slurm-dev/c.zip"):
            assert allowed(f"{objects}/{name}", "", frozenset())
        for name in ("runs/first/1", "slurm/slurm-prod/c.zip", "heartbeats/a"):
            assert not allowed(f"{objects}/{name}", "", frozenset())


def test_who_submits_acts_as_login_nodes_and_never_as_the_controller() -> None:
    recording = up(users=["group:ml@example.com"], accountUsers=["group:sre@example.com"])
    acts = {
        (item.inputs["serviceAccountId"].rpartition("/")[2].partition("@")[0], item.inputs["member"])
        for item in recording.of("gcp:serviceaccount/iAMMember:IAMMember")
    }
    assert acts == {
        ("slurm-dev-login", "group:ml@example.com"),
        ("slurm-dev-login", "group:sre@example.com"),
        ("slurm-dev-controller", "group:sre@example.com"),
        ("tpu-training", member("controller")),
    }


def test_only_the_ports_that_are_used_are_open() -> None:
    rules = {item.name.removeprefix("slurm-dev-"): item.inputs for item in up(accounting=True).of(FIREWALL)}
    opened = {
        name: (
            rule["targetTags"],
            rule.get("sourceTags"),
            rule.get("sourceRanges"),
            rule["allows"][0]["ports"],
        )
        for name, rule in rules.items()
    }
    controller, login, hosts = "slurm-dev-controller", "slurm-dev-login", "slurm-dev-host"
    assert opened == {
        "slurmctld": ([controller], [hosts, login], None, ["6817", "2049"]),
        "slurmd": ([hosts], [hosts, controller, login], None, ["6818"]),
        "srun": ([hosts, login], [hosts, controller], None, ["61001-63000"]),
        "slurmdbd": ([controller], [login], None, ["6819"]),
        "ssh": ([controller, login], None, ["35.235.240.0/20"], ["22"]),
    }
    assert {rule["direction"] for rule in rules.values()} == {"INGRESS"}
    assert "slurmdbd" not in {way.name for way in firewall.ways(settings())}


def test_a_kept_firewall_is_left_to_its_owner() -> None:
    own = {
        "network:existingNetwork": "projects/my-project/global/networks/theirs",
        "network:manageFirewall": False,
        "network:existingSubnets": {"us-east5": "projects/my-project/regions/us-east5/subnetworks/s"},
    }  # fmt: skip
    assert run("slurm", {**CLUSTER, **own}, up=UP).of(FIREWALL) == []


def test_the_program_is_named_by_its_content_and_has_what_the_machines_run(tmp_path: Path) -> None:
    first, second = (up().only("gcp:storage/bucketObject:BucketObject") for _ in range(2))
    assert first.inputs["name"] == second.inputs["name"]
    # Of one name in the stack, an update that fails and is taken back would delete what it makes again.
    assert first.name == f"program-{Path(first.inputs['name']).name[:12]}"
    with zipfile.ZipFile(program.archive_of(settings())) as archive:
        archive.extractall(tmp_path)
    assert (tmp_path / "infra/layers/slurm/conf/job_submit.lua").exists()
    assert (tmp_path / "Pulumi.dev.yaml").exists()
    code = """
import slurm.__main__, sys
print(*(item.__file__ for name, item in sys.modules.items() if name.partition(".")[0] in sys.argv[1:]))
"""
    own = ["fleet", "infra", "slurm", "workload"]
    done = subprocess.run(
        [sys.executable, "-c", code, *own], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "workload/host/logs.py" in done.stdout
    assert all(name.startswith(f"{tmp_path}/") for name in done.stdout.split())


@pytest.mark.parametrize(("published", "missing", "refused"), [
    ({"slurm:bundle": None}, None, "slurm:bundle: no bundle was published"),
    ({}, f"gs://bucket-that-is-up/bundles/manifests/{'cd' * 32}", "slurm:bundle: gs://"),
    ({"tpu:bundle": None}, None, "tpu:bundle: no bundle was published"),
])  # fmt: skip
def test_an_update_without_what_machines_or_hosts_install_makes_nothing(
    published: dict[str, Any], missing: str | None, refused: str
) -> None:
    result: list[Recording] = []
    values = {**CLUSTER, **published}
    with pytest.raises(pulumi.RunError, match=f"^{refused}[^\n]*\n    fix: tpu publish dev"):
        run("slurm", values, up=UP, missing=missing, into=result)
    assert [item for item in result[0].resources if item.type.startswith("gcp:")] == []
    assert refused in "\n".join(run("slurm", values, preview=True, up=UP, missing=missing).log)


def test_while_slices_live_the_controller_stays() -> None:
    guard = up().only("pulumi-python:dynamic:Resource")
    assert guard.inputs["what"] == "slices"
    assert guard.inputs["labels"] == {"stack": "0123abc", "slurm": "slurm-dev"}


def test_outputs_are_the_toolkits_nodeset_and_what_settings_determine() -> None:
    exports, planned = up().exports, SlurmOutputs.planned(settings())
    assert exports["nodesets"][0] == {
        "name": "tpu", "acceleratorType": "v6e-16", "topology": "4x4", "zones": ["us-east5-b"],
        "provisioning": "on demand", "hostsPerSlice": 4, "staticSlices": 1, "slices": 3,
        "nodes": "tpu-[0-2]-w[0-3]",
    }  # fmt: skip
    assert exports["partitions"] == [
        {"name": "tpu", "default": True, "nodesets": ["tpu"], "hosts": 12, "slices": 3},
        {"name": "small", "default": False, "nodesets": ["small"], "hosts": 1, "slices": 1},
    ]
    assert exports["topology"] == {"tpu": ["tpu-0", "tpu-1", "tpu-2"], "small": ["small-0"]}
    assert exports["home"] == "10.64.32.9:/home"
    assert (exports["nodesets"], exports["accounts"]) == (planned["nodesets"], planned["accounts"])
    assert exports["usefulCommands"]["submit"] == "tpu slurm submit dev job.sbatch -- -p tpu -N 1"


def rows(**more: Any) -> dict[str, PriceRow]:
    return {row.what: row for row in LAYER.prices(settings(**more))}


def test_a_machine_of_n2_standard_costs_by_its_cpus_and_another_is_of_no_known_price() -> None:
    four, sixteen = (
        rows(controllerMachineType=f"n2-standard-{cpus}")["slurm-dev-controller"] for cpus in (4, 16)
    )
    two = rows(controllerMachineType="n2-standard-2")["slurm-dev-controller"]
    assert four.hourly
    assert sixteen.hourly
    assert two.hourly
    assert sixteen.hourly - four.hourly == pytest.approx(6 * (four.hourly - two.hourly))
    other = rows(controllerMachineType="c3-standard-8")["slurm-dev-controller"]
    assert other.hourly is None, "the plan says that it is unknown, and not 0"
    assert "No price of machine.c3-standard-8 in us-east5 is known." in other.source


def test_prices_of_machines_disk_and_slices() -> None:
    result = rows()
    assert result["slurm-dev-controller"].hourly == pytest.approx(0.194236 + 20 * 0.1 / 730)
    assert result["1 login nodes"].hourly == pytest.approx(0.194236 + 20 * 0.1 / 730)
    assert result["slurm-dev-state"].hourly == pytest.approx(100 * 0.1 / 730)
    static, dynamic, spot = (
        result[name] for name in ("tpu, static", "tpu, dynamic at most", "small, dynamic at most")
    )
    assert (static.hourly, dynamic.hourly) == pytest.approx((16 * 2.70, 2 * 16 * 2.70))
    assert spot.hourly == pytest.approx(8 * 1.4033)
    assert (static.idle, dynamic.idle, spot.paid) == (True, False, "spot")
    assert "slurm-dev-state" not in rows(
        existingStateDisk="projects/my-project/zones/us-east5-b/disks/slurm-dev-state"
    )
    assert rows(homeStorage="filestore")["slurm-dev-home"].hourly is None, "no book has it"


def test_a_slice_that_the_fleet_has_a_record_of_counts_once() -> None:
    """A budget counts records as slices of the file, and what may still come beside them."""
    alone = prices.within_budget(settings())
    record = {"name": "tpu-1", "acceleratorType": "v6e-16", "zones": ["us-east5-b"], "count": 1}
    values = {**BASE, **CLUSTER, "tpu:slices": [*BASE["tpu:slices"], record]}
    with_record = parse("dev", as_pulumi_hands_it_over(values, "f"), "f", marks=(ADDED_SLICES,))
    assert prices.within_budget(with_record) == pytest.approx(alone)


def test_quotas_are_those_of_all_slices_and_machines() -> None:
    uses = {(use.quota.name, use.quota.place): use.amount for use in LAYER.hooks.quotas(settings())}
    assert uses == {
        ("TPUV6EPerProjectPerRegionForTPUAPI", "us-east5"): 48,
        ("TPUV6EPerProjectPerZoneForTPUAPI", "us-east5-b"): 48,
        ("TPUV6EPreemptiblePerProjectPerRegionForTPUAPI", "us-east5"): 8,
        ("TPUV6EPreemptiblePerProjectPerZoneForTPUAPI", "us-east5-b"): 8,
        ("CPUS-per-project-region", "us-east5"): 8,
    }


def test_what_is_made_can_be_looked_for_at_google() -> None:
    ids = LAYER.at_google(settings(homeStorage="filestore"))
    place = "projects/my-project/zones/us-east5-b"
    assert {
        f"{place}/instances/slurm-dev-controller", f"{place}/instances/slurm-dev-login-0",
        f"{place}/disks/slurm-dev-state",
        "projects/my-project/regions/us-east5/addresses/slurm-dev-controller",
        "projects/my-project/secrets/slurm-dev-munge",
        "projects/my-project/locations/us-east5-b/instances/slurm-dev-home",
    } <= ids.keys()  # fmt: skip
