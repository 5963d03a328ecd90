"""Rules for TPU hosts, machines of Compute Engine, and their disks."""

from collections.abc import Iterator

from infra.policy.rule import Resource, Rule, every, forbidden, given, literal
from infra.settings.schema import Settings
from infra.settings.variables import LOOKS_SECRET
from infra.slices.runtime import is_runtime

_VM, _MACHINE = ("gcp:tpu/v2Vm:V2Vm",), ("gcp:compute/instance:Instance",)
_ANY = (*_VM, *_MACHINE)  # both have their metadata and their account in the same place


def _secrets(resource: Resource, _: Settings) -> Iterator[str]:
    for key, value in sorted((resource.inputs.get("metadata") or {}).items()):
        if LOOKS_SECRET.search(str(value)):
            yield f"metadata.{key}: what looks like a secret, which isn't printed"


def _internal(resource: Resource, _: Settings) -> Iterator[str]:
    for interface in resource.inputs.get("networkInterfaces") or ():
        if "accessConfigs" in interface or "ipv6AccessConfigs" in interface:
            yield "networkInterfaces.accessConfigs: an external address"


def _outlives(resource: Resource, _: Settings) -> Iterator[str]:
    if resource.get("accessMode") == "READ_ONLY_MANY":
        return  # made of a snapshot
    if not (resource.protect and resource.retain_on_delete):
        yield f"protect: {resource.protect}, retain_on_delete: {resource.retain_on_delete}"


def _read_only(resource: Resource, _: Settings) -> Iterator[str]:
    for disk in resource.inputs.get("dataDisks") or ():
        if disk.get("mode") != "READ_ONLY":
            yield f"dataDisks.mode: {disk.get('mode') or 'nothing'}"


def _runtime(resource: Resource, _: Settings) -> Iterator[str]:
    version = str(resource.inputs.get("runtimeVersion", ""))
    if not is_runtime(version):
        yield f"runtimeVersion: {version or 'nothing'}"


RULES = (
    Rule("T01", _VM, "hosts have no external address", "networkConfig.enableExternalIps: false",
         "CKV2_GCP_32, CIS 4.9", literal("networkConfig.enableExternalIps", False)),
    Rule("T02", _ANY, "hosts name their service account", "service_account={email, scopes}", "CIS 4.1",
         given("serviceAccount.email")),
    Rule("T04", _ANY, "people log in by OS Login", "enable-oslogin: TRUE", "CKV_GCP_34, CIS 4.4",
         literal("metadata.enable-oslogin", "TRUE")),
    Rule("T05", _ANY, "SSH keys in the project's metadata don't work", "block-project-ssh-keys: TRUE",
         "CKV_GCP_32, CIS 4.3", literal("metadata.block-project-ssh-keys", "TRUE")),
    Rule("T06", _ANY, "the serial console is closed", "serial-port-enable: FALSE", "CKV_GCP_35, CIS 4.5",
         literal("metadata.serial-port-enable", None, "FALSE")),
    Rule("T07", _ANY, "hosts forward no packets", "no can_ip_forward", "CKV_GCP_36, CIS 4.6",
         every(literal("networkConfig.canIpForward", None, False), literal("canIpForward", None, False))),
    Rule("T08", _ANY, "no secret in metadata, which every process of a host can read", "Secret Manager", "",
         _secrets),
    Rule("T09", _VM, "data disks are attached read-only", 'mode="READ_ONLY"', "", _read_only),
    Rule("T10", _VM, "hosts name an image for v6e", "the catalog's runtime version", "",
         _runtime),
    Rule("T11", ("gcp:tpu/v2QueuedResource:V2QueuedResource",),
         "no V2QueuedResource: without a service account of its own it would run as the default one",
         "gcp.tpu.V2Vm", "", forbidden),
    Rule("T12", _MACHINE, "machines have no external address", "network_interfaces without access_configs",
         "CKV_GCP_40, CIS 4.9", _internal),
    Rule("T13", _MACHINE, "machines are Shielded VMs with secure boot and integrity monitoring",
         "shielded_instance_config", "CKV_GCP_39, CIS 4.8",
         every(literal("shieldedInstanceConfig.enableSecureBoot", True),
               literal("shieldedInstanceConfig.enableVtpm", True),
               literal("shieldedInstanceConfig.enableIntegrityMonitoring", True))),
    Rule("T14", ("gcp:compute/disk:Disk", "gcp:filestore/instance:Instance"),
         "writable disks are protected, and retained when their stack is destroyed",
         "protect=True and retain_on_delete=True", "", _outlives),
    Rule("T15", ("gcp:secretmanager/*SecretVersion*",), "secret values aren't in Pulumi's state",
         "only the secret; add its version yourself", "", forbidden),
)  # fmt: skip
