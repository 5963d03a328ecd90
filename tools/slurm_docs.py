"""Block of docs/reference/slurm.md: each input of cluster-toolkit's TPU nodeset beside its setting."""

from __future__ import annotations

from infra.layers.slurm.former import FORMER
from infra.layers.slurm.settings import NodesetSettings
from infra.settings.schema import keys_of
from tools.blocks import table
from tools.settings_docs import default_of

# `schedmd-slurm-gcp-v6-nodeset-tpu`, its table of inputs with their defaults.
_THERE = {
    "accelerator_config": '{"topology": "", "version": ""}',
    "data_disks": "[]",
    "disable_public_ips": "null",
    "docker_image": "null",
    "enable_public_ips": "false",
    "name": "required",
    "network_storage": "[]",
    "node_count_dynamic_max": "0",
    "node_count_static": "0",
    "node_type": '""',
    "preemptible": "false",
    "preserve_tpu": "false",
    "project_id": "required",
    "reserved": "false",
    "runtime_version": "tpu-ubuntu2204-base",
    "service_account": "null",
    "service_account_email": "null",
    "service_account_scopes": "[cloud-platform]",
    "startup_script": "# no-op",
    "subnetwork_self_link": "required",
    "tf_version": "2.10.0 in its example",
    "zone": "required",
}
_HERE = {
    "name": ("name", "first part of its slices' and hosts' names"),
    "network_storage": ("networkStorage", "NFS and buckets; /home comes with the cluster"),
    "node_count_dynamic_max": (
        "nodeCountDynamicMax",
        "hosts, in whole slices, static ones included; the module adds the two",
    ),
    "node_count_static": ("nodeCountStatic", "hosts, in whole slices"),
    "preserve_tpu": (
        "preserveTpu",
        "keeps idle slices; the module stops them, which multi-host slices don't support",
    ),
    "reserved": ("reserved", ""),
    "runtime_version": (
        "runtimeVersion",
        "by default `tpu:runtimeVersion`; the module's default doesn't boot v6e",
    ),
    "startup_script": ("startupScript", "`gs://` URL of the script"),
    "zone": ("zone", "see also `fallbackZones`"),
}


def nodeset() -> str:
    """Return the table of inputs."""
    assert {*_THERE} == {*_HERE, *FORMER}
    keys, rows = keys_of(NodesetSettings), []
    for name, default in _THERE.items():
        if name in _HERE:
            key, about = _HERE[name]
            rows.append((f"`{name}`", default, f"`{key}`", default_of(keys[key]), about))
        else:
            former = FORMER[name]
            rows.append((f"`{name}`", default, "refused", "", f"{former.rule}. Fix: {former.fix}"))
    head = ("module's input", "its default", "key of a nodeset", "default", "difference")
    return table(head, rows)
