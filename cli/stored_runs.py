"""Runs in an environment's checkpoint bucket: their objects, their names, their price."""

import difflib
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from infra.catalog import CATALOG
from infra.errors import CommandError, InputError
from infra.google.client import Client, RequestError, about, bucket_url, object_url
from infra.google.failures import Kind
from infra.layers.gke.pools import ON_DEMAND, chip_hourly
from infra.layers.gke.settings import GkeSettings
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings
from infra.slices import price
from infra.slices.nodes import known_zones, nodes
from workload.runs import history
from workload.runs.errors import MissingObjectError
from workload.runs.history import Brief

_FOLDER = "runs/"
_AT_ONCE = 16  # runs
_TPU = "TPU v6 lite"  # JAX's name of a v6e chip


class BucketReader:
    """Objects of a bucket below a folder, read by the login of the commands."""

    def __init__(self, client: Client, bucket: str, folder: str):
        self.url = f"gs://{bucket}/{folder}".rstrip("/")
        self._client, self._bucket, self._folder = client, bucket, folder

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """See `Reader.read`. Raises RequestError, too."""
        content = self._client.content(object_url(self._bucket, self._folder + name))
        if content is None:
            raise MissingObjectError(f"{self.url}/{name}: no such object")
        return content[start:end]

    def list(self, prefix: str) -> list[str]:
        """See `Reader.list`."""
        return sorted(self.sizes(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        """See `Reader.sizes`."""
        query = {"prefix": self._folder + prefix, "fields": "items(name,size),nextPageToken"}
        items = self._client.items(f"{bucket_url(self._bucket)}/o", "items", query)
        return {item["name"].removeprefix(self._folder): int(item["size"]) for item in items}


@dataclass(frozen=True)
class Price:
    """Price of a run; None where unknown.

    Attributes:
        hourly: US dollars an hour of its slices.
        paid: how and where, such as `spot, us-east5-b`.
        at_most: it may be less, since nothing says how the slices are paid for.
    """

    hourly: float | None
    paid: str = ""
    at_most: bool = False

    def so_far(self, brief: Brief) -> float | None:
        """Return the US dollars of the run's starts."""
        return None if self.hourly is None else self.hourly * brief.paid_h

    def predicted(self, brief: Brief) -> float | None:
        """Return the US dollars at the end of the run, at the goodput so far."""
        spent = self.so_far(brief)
        if spent is None or self.hourly is None or brief.ended:
            return spent
        if brief.left_s is None or not brief.goodput:
            return None
        return spent + self.hourly * brief.left_s / brief.goodput / 3600


class Runs:
    """Runs of an environment."""

    def __init__(self, settings: Settings, client: Client):
        self._settings, self._client = settings, client
        self._bucket = settings[StorageSettings].bucket_name
        self._nodes = {node.name: node for node in nodes(settings)}
        self.url = f"gs://{self._bucket}/{_FOLDER}"

    def names(self) -> list[str]:
        """List the folders of runs. Raises CommandError for a missing bucket."""
        query = {"prefix": _FOLDER, "delimiter": "/", "fields": "prefixes,nextPageToken"}
        try:
            with about(self.url):
                pages = [*self._client.pages(f"{bucket_url(self._bucket)}/o", query)]
        except RequestError as error:
            if error.failure.kind is not Kind.MISSING:
                raise
            fix = f"tpu up {self._settings.environment} storage"
            raise CommandError(f"{self.url}: there is no such bucket\n    fix: {fix}") from None
        folders = [folder for page in pages for folder in page.get("prefixes") or ()]
        return [folder.removeprefix(_FOLDER).rstrip("/") for folder in folders]

    def reader(self, run: str) -> BucketReader:
        """Return the reader of a run's folder."""
        return BucketReader(self._client, self._bucket, f"{_FOLDER}{run}/")

    def briefs(self) -> list[Brief]:
        """Read all runs, the one with the newest status first."""
        now_s = time.time()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            read = pool.map(lambda run: history.brief(self.reader(run), run, now_s), self.names())
            present = [brief for brief in read if brief]
        return sorted(present, key=lambda brief: brief.updated, reverse=True)

    def unknown(self, run: str) -> InputError:
        """Return the error for a name that no run has."""
        names, environment = self.names(), self._settings.environment
        near = difflib.get_close_matches(run, names, 1)
        fix = f"tpu runs show {environment} {near[0]}" if near else f"tpu runs {environment} lists them"
        return InputError(f"no run {run} in {self.url}\n    fix: {fix if names else nothing(environment)}")

    def price(self, brief: Brief) -> Price:
        """Return a run's price: of its node's slices in the settings, as recorded, or on demand at most."""
        if node := self._nodes.get(brief.node):
            row = price.rows([node])[0]
            return Price(
                None if row.hourly is None else row.hourly * brief.slices, f"{row.paid}, {node.zone}"
            )
        kind = CATALOG.by_name(brief.accelerator)
        if not (kind or brief.chip == _TPU):
            return Price(None)
        chips = kind.chips * brief.slices if kind else brief.chips
        zone = brief.zone or self._zone(brief.node) or f"{self._region}-"
        hourly = chip_hourly(zone, brief.provisioning or ON_DEMAND)
        paid = f"{brief.provisioning or f'at most: {ON_DEMAND}'}, {zone.rstrip('-')}"
        return Price(None if hourly is None else hourly * chips, paid, at_most=not brief.provisioning)

    @property
    def _region(self) -> str:
        """Region of runs that recorded no zone."""
        gke = self._settings.get(GkeSettings)
        return (gke and gke.region) or self._settings[StorageSettings].location

    def is_node(self, brief: Brief) -> bool:
        """Return True if the run's node is a slice of the settings or of a fleet, so that it has logs."""
        return brief.node in self._nodes or bool(self._zone(brief.node))

    def _zone(self, node: str) -> str:
        """Return the zone in the name of a fleet's node; empty for other names."""
        zones: Sequence[str] = [re.escape(zone) for zone in known_zones(self._settings)]
        match = re.fullmatch(rf"tpu-({'|'.join(zones)})-\d+", node)
        return match[1] if match else ""


def nothing(environment: str) -> str:
    """Return what makes a first run."""
    return f"a slice with `run: train tiny.toml` in Pulumi.{environment}.yaml, then tpu up {environment}"
