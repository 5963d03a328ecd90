"""`tpu logs`: output of boot and job on an environment's hosts, from Cloud Logging.

https://cloud.google.com/logging/docs/reference/v2/rest/v2/entries/list
"""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from cli import options
from cli.command import Command
from cli.options import COUNT
from infra.engine.settings import from_file
from infra.errors import CommandError
from infra.google.client import Client
from infra.settings.schema import GcpSettings, Settings
from infra.slices.names import LOG
from infra.slices.nodes import known_zones

LOGGING = "https://logging.googleapis.com"
_UNITS = {"boot": "google-startup-scripts.service", "job": "tpu-job.service"}
_POLL_S = 2.0
_LATE_S = 30.0  # an entry may be listed this long after its timestamp
_PAGE = 1000  # the maximum of the API


@click.command(cls=Command, examples=["dev train --worker 0 --follow"])
@options.environment
@click.argument("name", metavar="[NODE]", required=False, help="a node or a slice; default: all")
@click.option("--worker", type=int, metavar="N", help="Only this host of the node.")
@click.option("--unit", type=click.Choice([*_UNITS]), help="Only output of the boot, or of the job.")
@click.option("--since", type=options.Age(), metavar="AGE", help="Only entries of the last 30m, 6h, 2d, …")
@click.option(
    "--lines", type=COUNT, default=200, show_default=True, metavar="N", help="Maximum number of entries."
)
@click.option("--follow", "-f", is_flag=True, help="Then print new entries until Ctrl+C.")
@click.option("--json", "as_json", is_flag=True, help="Print whole entries as JSON, one per line.")
@click.pass_obj
def logs(
    root: Path, environment: str, name: str | None, worker: int | None, unit: str | None,
    since: timedelta | None, lines: int, follow: bool, as_json: bool,
) -> int:  # fmt: skip
    """Print output of boot and job, the newest entries last."""
    settings = from_file(environment, root)
    project = settings[GcpSettings].project
    entries = Entries(Client(project), project, _filter(settings, name, worker, unit))
    newest = entries.newest(lines, datetime.now(UTC) - since if since else None)
    for entry in newest:
        print(_line(entry, as_json), flush=True)
    if not newest and not follow:
        where = f"tpu status {environment} lists the slices"
        print(f"no entries; a host sends its first ones in the boot stage `logs`; {where}", file=sys.stderr)
    if follow:
        for entry in entries.following(newest[-1]["timestamp"] if newest else now()):
            print(_line(entry, as_json), flush=True)
    return 0


class Entries:
    """Entries of a log, selected by a filter."""

    def __init__(
        self, client: Client, project: str, selected: str, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._client, self._project, self._filter, self._sleep = client, project, selected, sleep
        self._shown: dict[str, str] = {}  # timestamp by insertId, of entries that a later answer may repeat

    def newest(self, count: int, since: datetime | None = None) -> list[dict[str, Any]]:
        """Return the last `count` entries, oldest first. Raises RequestError."""
        after = f' AND timestamp>="{_text(since)}"' if since else ""
        entries = [*self._list(after, "timestamp desc", count)]
        self._shown |= {entry["insertId"]: entry["timestamp"] for entry in entries}
        return entries[::-1]

    def following(self, newest: str) -> Iterator[dict[str, Any]]:
        """Yield entries as they arrive, once, without end; `newest`: the last timestamp shown."""
        while True:
            self._sleep(_POLL_S)
            for entry in self.since(newest):
                newest = max(newest, entry["timestamp"])
                yield entry

    def since(self, newest: str) -> Iterator[dict[str, Any]]:
        """Yield entries of this time or later that weren't yielded before, and late ones."""
        latest = min(datetime.fromisoformat(newest), datetime.now(UTC))  # hosts may date entries ahead
        begin = _text(latest - timedelta(seconds=_LATE_S))
        self._shown = {name: at for name, at in self._shown.items() if at >= begin}
        for entry in self._list(f' AND timestamp>="{begin}"', "timestamp asc", sys.maxsize):
            if entry["insertId"] not in self._shown:
                self._shown[entry["insertId"]] = entry["timestamp"]
                yield entry

    def _list(self, more: str, order: str, count: int) -> Iterator[dict[str, Any]]:
        token = ""
        while count > 0:
            body = {
                "resourceNames": [f"projects/{self._project}"],
                "filter": self._filter + more,
                "orderBy": order,
                "pageSize": min(count, _PAGE),
                **({"pageToken": token} if token else {}),
            }
            answer = self._client.json("POST", f"{LOGGING}/v2/entries:list", body=body)
            entries = answer.get("entries") or []
            yield from entries
            count -= len(entries)
            token = answer.get("nextPageToken") or ""
            if not token:
                return


def _filter(settings: Settings, name: str | None, worker: int | None, unit: str | None) -> str:
    """Return the filter of a node or slice, a worker, a unit. Raises CommandError for an impossible name."""
    labels = {}
    if name and not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", name):
        raise CommandError(f"{name!r} is no name of a node or slice\n    fix: a name that tpu status lists")
    if name:
        zones = "|".join(map(re.escape, known_zones(settings)))
        # A named slice's node has its name; a fleet's nodes are named by their zones.
        labels["node" if re.fullmatch(rf"tpu-({zones})-\d+", name) else "slice"] = name
    if worker is not None:
        labels["worker"] = str(worker)
    if unit:
        labels["unit"] = unit
    return selected(settings.project, **labels)


def selected(project: str, **labels: str) -> str:
    """Return a filter for entries with these labels; `unit` is `boot` or `job`.

    https://cloud.google.com/logging/docs/view/logging-query-language
    """
    parts = {"logName": f"projects/{project}/logs/{LOG}"}
    parts |= {
        f"labels.{key}": _UNITS.get(value, value) if key == "unit" else value for key, value in labels.items()
    }
    return " AND ".join(f'{key}="{value}"' for key, value in parts.items())


def _line(entry: Mapping[str, Any], as_json: bool) -> str:
    if as_json:
        return json.dumps(entry)
    labels = entry.get("labels") or {}
    at = datetime.fromisoformat(entry["timestamp"]).astimezone().strftime("%m-%d %H:%M:%S")
    text = text_of(entry).replace("\n", "\n    ")  # no further line looks like another host's
    return f"{at} {labels.get('node', '?')}-w{labels.get('worker', '?')} {text}"


def text_of(entry: Mapping[str, Any]) -> str:
    """Return the printed line, also of an event (docs/internals/architecture.md)."""
    return str(entry.get("textPayload") or entry.get("jsonPayload", {}).get("message", ""))


def now() -> str:
    """Return the present in the format of entries."""
    return _text(datetime.now(UTC))


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
