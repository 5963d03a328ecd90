"""Outputs of the slurm layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infra.core.outputs import Outputs, output
from infra.layers.slurm import names
from infra.layers.slurm.conf import nodes
from infra.layers.slurm.slices import Nodeset, nodesets
from infra.settings.schema import LOGIN, Settings

if TYPE_CHECKING:
    from pulumi import Output


class SlurmOutputs(Outputs, layer="slurm"):
    """The cluster, for people and commands; `nodesets` is the counterpart of the toolkit's `nodeset_tpu`."""

    cluster_name: Output[str] = output("`slurm-dev`, Slurm's ClusterName")
    controller: Output[str] = output("`projects/P/zones/Z/instances/slurm-dev-controller`")
    controller_address: Output[str] = output("internal address of the controller")
    home: Output[str] = output("`SERVER:PATH` of /home")
    login_nodes: Output[list[str]] = output("list: names of the login nodes")
    zone: Output[str] = output("zone of the controller and the login nodes")
    nodesets: Output[list[dict[str, Any]]] = output(
        "list: name, acceleratorType, topology, zones, provisioning, hostsPerSlice, staticSlices, slices,"
        " nodes"
    )
    partitions: Output[list[dict[str, Any]]] = output("list: name, default, nodesets, hosts, slices")
    topology: Output[dict[str, list[str]]] = output("mapping: switches below it, a slice each", key="nodeset")
    munge_secret: Output[str] = output("`projects/P/secrets/slurm-dev-munge`")
    accounts: Output[dict[str, str]] = output("mapping: address of the account", key="role")
    useful_commands: Output[dict[str, str]] = output("mapping: what to type", key="what")

    @staticmethod
    def planned(settings: Settings) -> Mapping[str, Any]:
        """Return the outputs that the settings determine, for previews of layers that read them."""
        return {
            "cluster_name": names.name(settings),
            "login_nodes": names.logins(settings),
            "zone": names.zone(settings),
            "nodesets": [of_nodeset(nodeset) for nodeset in nodesets(settings)],
            "partitions": of_partitions(settings),
            "topology": {
                nodeset.name: [slice_.name for slice_ in nodeset.slices] for nodeset in nodesets(settings)
            },
            "munge_secret": names.munge_secret_id(settings),
            "accounts": {role: names.account(settings, role) for role in names.ROLES},
            "useful_commands": useful_commands(settings),
        }


def of_nodeset(nodeset: Nodeset) -> dict[str, Any]:
    """Return a nodeset as the stack exports it."""
    desired = nodeset.settings
    return {
        "name": nodeset.name,
        "acceleratorType": nodeset.kind.name,
        "topology": nodeset.kind.topology,
        "zones": list(nodeset.places),
        "provisioning": "reserved" if desired.reserved else "spot" if desired.spot else "on demand",
        "hostsPerSlice": nodeset.hosts,
        "staticSlices": nodeset.static,
        "slices": nodeset.count,
        "nodes": nodeset.names(),
    }


def of_partitions(settings: Settings) -> list[dict[str, Any]]:
    """Return the partitions as the stack exports them."""
    default = nodes.default_partition(settings)
    return [
        {
            "name": partition.name,
            "default": partition.name == default,
            "nodesets": list(partition.nodesets),
            "hosts": sum(nodeset.count * nodeset.hosts for nodeset in nodes.nodesets_of(settings, partition)),
            "slices": sum(nodeset.count for nodeset in nodes.nodesets_of(settings, partition)),
        }
        for partition in nodes.partitions(settings)
    ]


def useful_commands(settings: Settings) -> dict[str, str]:
    """Return commands to paste."""
    environment, default = settings.environment, nodes.default_partition(settings)
    login = names.logins(settings)[0]
    where = f"--project={settings.project} --zone={names.zone(settings)} --tunnel-through-iap"
    return {
        "submit": f"tpu slurm submit {environment} job.sbatch -- -p {default} -N 1",
        "status": f"tpu slurm status {environment}",
        "logs": f"tpu slurm logs {environment} JOB",
        "cancel": f"tpu slurm cancel {environment} JOB",
        "ssh": f"tpu slurm ssh {environment}",
        "login": f"gcloud compute ssh {login} {where}",
        "whoami": LOGIN,
        "controllerLog": f"gcloud compute ssh {names.controller(settings)} {where} "
        f"--command='sudo journalctl --unit=slurmctld --lines=50'",
    }
