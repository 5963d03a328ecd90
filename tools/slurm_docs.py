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
        "hosts in whole slices, the static ones among them: there the two are added up",
    ),
    "node_count_static": ("nodeCountStatic", "hosts in whole slices"),
    "preserve_tpu": (
        "preserveTpu",
        "an idle slice stays; there it is stopped, which one of several hosts can't be",
    ),
    "reserved": ("reserved", ""),
    "runtime_version": (
        "runtimeVersion",
        "`tpu:runtimeVersion` by default; the default there boots no v6e",
    ),
    "startup_script": ("startupScript", "an object in a bucket, so that settings hold no script"),
    "zone": ("zone", "`fallbackZones` beside it, where Google has no chips there"),
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
    head = ("input there", "default there", "key of a nodeset", "default here", "what is otherwise")
    return table(head, rows)
