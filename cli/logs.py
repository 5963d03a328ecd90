"""`tpu logs`: what boot and job of an environment's hosts printed, from Cloud Logging.

https://cloud.google.com/logging/docs/reference/v2/rest/v2/entries/list
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from infra.engine.settings import from_file
from infra.errors import CommandError
from infra.google.client import Client
from infra.settings.schema import GcpSettings, Settings
from infra.settings.sources import ROOT
from infra.slices.names import LOG
from infra.slices.nodes import known_zones

LOGGING = "https://logging.googleapis.com"
_UNITS = {"boot": "google-startup-scripts.service", "job": "tpu-job.service"}
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_POLL_S = 2.0
_LATE_S = 30.0  # an entry may be listed this long after its timestamp
_PAGE = 1000  # the most that one answer holds


def main(arguments: Sequence[str], root: Path = ROOT, client: Client | None = None) -> int:
    """What boot and job printed, the newest lines last."""
    options = _parser().parse_args(arguments)
    settings = from_file(options.environment, root)
    project = settings[GcpSettings].project
    entries = Entries(client or Client(project), project, _filter(settings, options))
    since = _now() - timedelta(seconds=options.since) if options.since else None
    found = entries.newest(options.lines, since)
    for entry in found:
        print(_line(entry, options.json), flush=True)
    if not found and not options.follow:
        print("no entries; a host sends its first ones in the boot stage `logs`", file=sys.stderr)
    if options.follow:
        for entry in entries.following(found[-1]["timestamp"] if found else now()):
            print(_line(entry, options.json), flush=True)
    return 0


class Entries:
    """Entries of one log that a filter selects."""

    def __init__(
        self, client: Client, project: str, selected: str, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._client, self._project, self._filter, self._sleep = client, project, selected, sleep
        self._shown: dict[str, str] = {}  # timestamp by insertId, of those that a later answer may repeat

    def newest(self, count: int, since: datetime | None = None) -> list[dict[str, Any]]:
        """The last `count` entries, oldest first. Raises RequestError."""
        after = f' AND timestamp>="{_text(since)}"' if since else ""
        found = []
        for entry in self._list(after, "timestamp desc", count):
            self._shown[entry["insertId"]] = entry["timestamp"]
            found.append(entry)
        return found[::-1]

    def following(self, newest: str) -> Iterator[dict[str, Any]]:
        """Entries as they arrive, each once, without end; `newest`: the last timestamp shown."""
        while True:
            self._sleep(_POLL_S)
            for entry in self.since(newest):
                newest = max(newest, entry["timestamp"])
                yield entry

    def since(self, newest: str) -> Iterator[dict[str, Any]]:
        """Entries that no call before has given, of this time or later, and late ones."""
        begin = _text(datetime.fromisoformat(newest) - timedelta(seconds=_LATE_S))
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
            some = answer.get("entries") or []
            yield from some
            count -= len(some)
            token = answer.get("nextPageToken") or ""
            if not token:
                return


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tpu logs", description=main.__doc__, epilog="example: tpu logs dev train --worker 0 --follow"
    )
    parser.add_argument("environment", metavar="ENV", help="dev, prod, …: the settings in Pulumi.ENV.yaml")
    parser.add_argument(
        "node", metavar="NODE", nargs="?", help="a node or a slice; all of them, unless given"
    )
    parser.add_argument("--worker", type=int, metavar="N", help="only this host of the node")
    parser.add_argument("--unit", choices=_UNITS, help="only the boot's or the job's")
    parser.add_argument("--since", type=_seconds, metavar="AGE", help="only of the last 30m, 6h, 2d, …")
    parser.add_argument("--lines", type=_count, default=200, metavar="N", help="at most so many (200)")
    parser.add_argument("--follow", "-f", action="store_true", help="then print new lines until Ctrl+C")
    parser.add_argument("--json", action="store_true", help="whole entries, one a line")
    return parser


def _filter(settings: Settings, options: argparse.Namespace) -> str:
    """What the command line asks for."""
    name, labels = options.node, {}
    if name and not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", name):
        raise CommandError(f"{name!r} is no name of a node or slice\n    fix: tpu status lists them")
    if name:
        zones = "|".join(map(re.escape, known_zones(settings)))
        # A named slice's node has its name; a fleet's nodes are named by their zones.
        labels["node" if re.fullmatch(rf"tpu-({zones})-\d+", name) else "slice"] = name
    if options.worker is not None:
        labels["worker"] = str(options.worker)
    if options.unit:
        labels["unit"] = options.unit
    return selected(settings.project, **labels)


def selected(project: str, **labels: str) -> str:
    """A filter for entries with these labels; `unit` is `boot` or `job`.

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
    return f"{at} {labels.get('node', '?')}-w{labels.get('worker', '?')} {text_of(entry)}"


def text_of(entry: Mapping[str, Any]) -> str:
    """The line as it was printed, also where it is an event (docs/architecture.md)."""
    return str(entry.get("textPayload") or entry.get("jsonPayload", {}).get("message", ""))


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if not found or int(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text} is no age: 90s, 30m, 6h or 2d")
    return float(int(found[1]) * _UNIT_S[found[2]])


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is no number of lines")
    return int(text)


def now() -> str:
    """The present, as entries have it."""
    return _text(_now())


def _now() -> datetime:
    return datetime.now(UTC)


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
