"""Imitates GKE's metadata server: pods differ by address, and each is its Kubernetes account to Google.

https://cloud.google.com/kubernetes-engine/docs/concepts/workload-identity
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from google_facts.scopes import EVERYTHING
from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.world import World
from rehearsal.cloud.machines.metadata import Guest, Guests


def principal(number: str, pool: str, namespace: str, account: str) -> str:
    """Return a Kubernetes account in the form of policies."""
    place = f"projects/{number}/locations/global/workloadIdentityPools/{pool}"
    return f"principal://iam.googleapis.com/{place}/subject/ns/{namespace}/sa/{account}"


class PodGuests:
    """The machines of `machines`, and the pods that have joined."""

    def __init__(self, world: World, machines: Guests) -> None:
        self._world, self._machines = world, machines
        self._pods: dict[str, Guest] = {}

    def guest(self, address: str) -> Guest | None:
        """Return the machine or the pod with this address."""
        return self._pods.get(address) or self._machines.guest(address)

    async def changed(self) -> None:
        """Return when something that a machine can read has changed; nothing of a pod does."""
        await self._machines.changed()

    async def join(self, body: JsonObject) -> JsonObject:
        """Add a pod: `address`, `node`, `zone`, `machine_type`, `cluster`, and its account.

        With a `workload_pool` it is the account `account` of `namespace`, and gets the tokens of
        `google_account` where that is given and lets it; else it is `node_account`.
        """
        pool, node = body["workload_pool"], body["node"]
        who = principal(self._world.number, pool, body["namespace"], body["account"]) if pool else ""
        self._pods[body["address"]] = replace(
            _bare(body["address"], node, (body["google_account"] or pool) if pool else body["node_account"]),
            zone=body["zone"],
            machine_type=body["machine_type"],
            attributes={"cluster-name": body["cluster"], "cluster-location": body["location"]},
            principal=who,
        )
        return {}

    def enter(self, address: str, name: str, account: str) -> None:
        """Add a build: requests from this address get the tokens of the account."""
        self._pods[address] = replace(_bare(address, name, account), serverless=True)

    def drop(self, address: str) -> None:
        """Remove the guest at an address."""
        self._pods.pop(address, None)

    async def leave(self, body: JsonObject) -> JsonObject:
        """Remove the pod at an `address`."""
        self.drop(body["address"])
        return {}


def _bare(address: str, name: str, account: str) -> Guest:
    """Return a guest with a name and an account, and no machine."""
    return Guest(
        name=name,
        instance_id=int(hashlib.sha256(name.encode()).hexdigest()[:15], 16),
        zone="",
        machine_type="",
        address=address,
        external_address="",
        gateway="",
        netmask="",
        mac="",
        mtu=0,
        network="",
        attributes={},
        tags=(),
        preempted=False,
        maintenance={},
        revocable=False,
        service_account=account,
        scopes=(EVERYTHING,),
        guest_attributes=None,
    )
