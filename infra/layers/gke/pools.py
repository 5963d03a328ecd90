"""The node pools of the settings, and what is derived from them: nodes, addresses, prices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infra.catalog import CATALOG, SliceType
from infra.layers.gke.facts import MAX_FLEX_START_S, Machine, machines_for
from infra.layers.gke.settings import GkeSettings, PoolSettings
from infra.layers.network.settings import NetworkSettings
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings
from infra.slices import sizes
from views.counts import counted

if TYPE_CHECKING:
    from infra.prices.row import PriceRow, Rate

TPU_MACHINES = ("ct", "tpu")  # first letters of the types of machines with chips: ct6e-…, tpu7x-…
PODS_PER_CPU_NODE = 110  # GKE's default and the most of it that a /24 takes
ON_DEMAND, SPOT, FLEX_START, QUEUED, RESERVED = PROVISIONING = (
    "on demand", "spot", "flex-start", "queued", "reservation",
)  # fmt: skip
_SMALLEST_BLOCK = 8


@dataclass(frozen=True)
class Pool:
    """A node pool with TPUs: a slice of `kind`, built of `nodes` machines.

    `scales`: GKE adds all of its nodes when pods need them, and removes all.
    """

    name: str
    group: str
    kind: SliceType
    machine: Machine
    zone: str
    provisioning: str
    scales: bool
    max_run_duration_s: int | None
    reservation: str | None
    labels: Mapping[str, str]

    @property
    def nodes(self) -> int:
        """Return the number of machines."""
        return self.kind.chips // self.machine.chips

    @property
    def hourly(self) -> float | None:
        """US dollars an hour while all nodes are there; None where no catalog knows the price."""
        dollars = chip_hourly(self.zone, self.provisioning)
        return None if dollars is None else self.kind.chips * dollars

    @property
    def provisioning_label(self) -> str:
        """Value of its nodes' label `tpu-provisioning`: how its chips come, e.g. `spot-autoscaled`.

        Every pool has one, since Kueue compares a job's node selector only with the labels that a flavor has.
        """
        also = "-autoscaled" if self.scales and not self.is_flex_start else ""
        return self.provisioning.replace(" ", "-") + also

    @property
    def is_flex_start(self) -> bool:
        """Return True if Google creates the nodes when it has the chips, for a while."""
        return self.provisioning in (FLEX_START, QUEUED)

    @property
    def queued_s(self) -> int | None:
        """Seconds that nodes of a queued pool are requested for; None for other pools."""
        return (self.max_run_duration_s or MAX_FLEX_START_S) if self.provisioning == QUEUED else None

    def outputs(self) -> dict[str, Any]:
        """Return the pool as the stack exports it."""
        return {
            "name": self.name,
            "acceleratorType": self.kind.name,
            "topology": self.kind.topology,
            "machineType": self.machine.name,
            "hosts": self.nodes,
            "chips": self.kind.chips,
            "zone": self.zone,
            "provisioning": self.provisioning,
            "provisioningLabel": self.provisioning_label,
            "scales": self.scales,
            "pricePerHour": self.hourly,
        }


def chip_hourly(zone: str, provisioning: str) -> float | None:
    """US dollars an hour of a chip, by a way of PROVISIONING; None where no catalog knows the price."""
    price = CATALOG.price(zone)
    prices = {
        ON_DEMAND: price.on_demand,
        SPOT: price.spot,
        FLEX_START: price.flex_start,
        QUEUED: price.flex_start,
    }
    return prices.get(provisioning)


def region(settings: Settings) -> str:
    """Return the cluster's region."""
    return settings[GkeSettings].region or settings[StorageSettings].location


def cluster_id(settings: Settings) -> str:
    """Return the cluster's id at Google."""
    name = settings[GkeSettings].cluster_name
    return f"projects/{settings.project}/locations/{region(settings)}/clusters/{name}"


def may_reach_any_host(settings: Settings) -> bool:
    """Return False if nodes reach Google's hosts alone."""
    return settings[NetworkSettings].reaches_any_host


def provisioning(item: PoolSettings) -> tuple[str, ...]:
    """Return the ways of provisioning that an item names; it may name one at most."""
    models = (
        (SPOT, item.spot),
        (FLEX_START, item.flex_start and not item.queued),  # which is flex-start, too
        (QUEUED, item.queued),
        (RESERVED, item.reservation),
    )
    return tuple(name for name, value in models if value)


def pools(settings: Settings) -> tuple[Pool, ...]:
    """All node pools with TPUs, in the order of the settings."""
    return tuple(pool for item in settings[GkeSettings].tpu_pools for pool in _of(item))


def _of(item: PoolSettings) -> Iterator[Pool]:
    kind = sizes.kind_of(item.accelerator_type, item.topology)
    assert kind is not None, "the settings were checked"
    able = machines_for(kind)
    machine = next((machine for machine in able if machine.name == item.machine_type), able[0])
    paid = (*provisioning(item), ON_DEMAND)[0]
    limit = item.max_run_duration_s or (MAX_FLEX_START_S if paid == FLEX_START else None)
    for number in range(item.count):
        yield Pool(
            name=f"{item.name}-{number}",
            group=item.name,
            kind=kind,
            machine=machine,
            zone=item.zone,
            provisioning=paid,
            scales=item.autoscaling or paid in (FLEX_START, QUEUED),
            max_run_duration_s=limit,
            reservation=item.reservation,
            labels=item.labels,
        )


def rows(settings: Settings) -> Iterator[PriceRow]:
    """Return the prices by the hour while all nodes run."""
    from infra.prices import row as prices_row
    from infra.slices.price import of_chips

    desired = settings[GkeSettings]
    if not desired.existing_cluster:
        yield prices_row.row(f"cluster {desired.cluster_name}", region(settings), ("gke.cluster", 1))
        nodes = desired.cpu_pool_nodes * max(1, len(cpu_zones(settings)))
        machine, disk = f"machine.{desired.cpu_pool_machine_type}", f"disk.{desired.cpu_pool_disk_type}"
        parts = ((machine, nodes), (disk, nodes * desired.cpu_pool_disk_gib))
        yield prices_row.row(f"{counted(nodes, 'CPU node')} with disks", region(settings), *parts)
    alike: dict[str, list[Pool]] = {}
    for pool in pools(settings):
        alike.setdefault(pool.group, []).append(pool)
    for group, same in alike.items():
        named, first = tuple(pool.name for pool in same), same[0]
        yield of_chips(
            f"pool {group}",
            named,
            first.kind,
            first.zone,
            paid=first.provisioning,
            hourly=first.hourly,
            idle=not first.scales,
        )


def rates(settings: Settings) -> Iterable[Rate]:
    """Return the prices by use."""
    from infra.prices import row as prices_row

    used = ("logging", "storage.standard") if settings[GkeSettings].artifact_bucket else ("logging",)
    return [prices_row.rate(id_, region(settings)) for id_ in used]


def cpu_zones(settings: Settings) -> tuple[str, ...]:
    """Zones of the CPU nodes; none where the settings name none and have no TPU pool."""
    given = settings[GkeSettings].cpu_pool_zones
    return given or tuple(item.zone for item in settings[GkeSettings].tpu_pools)[:1]


def block(pods: int) -> int:
    """Addresses that a node takes of the pods' range: twice its pods at least, a power of two.

    https://cloud.google.com/kubernetes-engine/docs/how-to/flexible-pod-cidr
    """
    return max(_SMALLEST_BLOCK, 1 << (2 * pods - 1).bit_length())


@dataclass(frozen=True)
class Addresses:
    """Addresses of the nodes: of the subnet one each, of the pods' range a block each."""

    cpu_nodes: int
    tpu_nodes: int
    tpu_block: int

    @property
    def nodes(self) -> int:
        """All nodes."""
        return self.cpu_nodes + self.tpu_nodes

    @property
    def pods(self) -> int:
        """Addresses of the blocks of all nodes."""
        return self.cpu_nodes * block(PODS_PER_CPU_NODE) + self.tpu_nodes * self.tpu_block


def addresses(settings: Settings) -> Addresses:
    """Return the addresses of all nodes that the settings allow."""
    desired = settings[GkeSettings]
    return Addresses(
        cpu_nodes=desired.cpu_pool_nodes * max(1, len(cpu_zones(settings))),
        tpu_nodes=sum(pool.nodes for pool in pools(settings)),
        tpu_block=block(desired.pods_per_tpu_node),
    )
