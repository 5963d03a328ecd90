"""Google's limits that what is declared counts for.

https://cloud.google.com/docs/quotas/overview
"""

from __future__ import annotations

from dataclasses import dataclass

from google_facts import builds, gke_pools


@dataclass(frozen=True, order=True)
class Quota:
    """A limit in a region or a zone.

    Attributes:
        service: whose it is, e.g. "compute.googleapis.com".
        name: as Google calls it when it refuses, and as `gcloud quotas` does.
        metric: as Service Usage lists it.
        dimension: "region" or "zone".
        place: which.
        unit: what it counts, in words.
        also: further dimensions with their values.
        fix: advice where it is short; empty: a request for more by `gcloud quotas`.
    """

    service: str
    name: str
    metric: str
    dimension: str
    place: str
    unit: str
    also: tuple[tuple[str, str], ...] = ()
    fix: str = ""


@dataclass(frozen=True)
class Use:
    """Largest use of a quota at once by a layer, with the reason."""

    quota: Quota
    amount: int
    why: str


def chips(dimension: str, place: str, *, spot: bool) -> Quota:
    """Return a quota of v6e chips; a node counts for both, the region's and the zone's.

    Names are those of refusals, as users have met them (marin-community/marin#1612). A reservation counts for
    on demand (https://cloud.google.com/tpu/docs/consumption-options).
    """
    kind = "Preemptible" if spot else ""
    return Quota(
        service="tpu.googleapis.com",
        name=f"TPUV6E{kind}PerProjectPer{dimension.capitalize()}ForTPUAPI",
        metric=f"tpu.googleapis.com/tpu-v6e{'-preemptible' if spot else ''}",
        dimension=dimension,
        place=place,
        unit=f"{'spot' if spot else 'on-demand'} chips",
    )


def gke_chips(region: str, *, revocable: bool) -> Quota:
    """Return the quota of v6e chips that GKE's nodes count for, which is Compute Engine's.

    `revocable`: of spot and flex-start nodes.
    """
    known = gke_pools.PREEMPTIBLE if revocable else gke_pools.ON_DEMAND
    return Quota(
        service="compute.googleapis.com",
        name=known.name,
        metric=known.metric,
        dimension="region",
        place=region,
        unit=f"{'spot and flex-start' if revocable else 'on-demand'} chips of GKE",
        also=tuple(known.family.items()),
    )


def cpus(region: str) -> Quota:
    """Return the quota of CPUs in a region, which batches of Dataproc use.

    https://cloud.google.com/dataproc-serverless/quotas
    """
    return Quota(
        service="compute.googleapis.com",
        name="CPUS-per-project-region",
        metric="compute.googleapis.com/cpus",
        dimension="region",
        place=region,
        unit="CPUs",
    )


def build_cpus(region: str, setting: str) -> Quota:
    """Return the quota of CPUs of builds in a region, which `setting` names; some projects have none in most.

    https://cloud.google.com/build/docs/locations#restricted_regions_for_some_projects
    """
    return Quota(
        service="cloudbuild.googleapis.com",
        name=builds.TITLE,
        metric=builds.METRIC,
        dimension="region",
        place=region,
        unit="CPUs",
        also=tuple(builds.ALSO.items()),
        fix=f"ask for it (console: IAM & Admin > Quotas), or another {setting}; "
        f"no project is restricted in {', '.join(builds.UNRESTRICTED)}",
    )
