"""A partition of 200 slices of four hosts without hosts behind them: slurmctld, our programs and the daemon.

Real are slurmctld, munge, the files of our settings, the programs that slurmctld calls, and the daemon, which
is a process of its own beside the emulated cloud. Its machines are told to boot, and do nothing.

python -m tests.proofs.slurm_scale          within namespaces of its own; the result is its last line
python -m tests.proofs.slurm_scale DAEMON   the daemon
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from benchmarks.machine import described, spread
from infra.engine import settings as engine
from infra.google.client import Client
from infra.layers.slurm import names
from infra.settings.schema import Settings
from infra.slices.names import STACK_ID_VARIABLE
from slurm import daemon
from slurm.machine import call
from slurm.system import System
from tests.fleet import lab
from tests.fleet.lab import Lab
from tests.slurm import real

SLICES, HOSTS, JOBS, RUNS = 200, 4, 50, 5
_ZONE = "us-east5-b"
CONFIG: dict[str, Any] = {
    **lab.CONFIG,
    "tpu:slices": [],
    "tpu:zones": [_ZONE],
    "slurm:nodesets": [{
        "name": "tpu", "acceleratorType": "v6e-16", "zone": _ZONE, "nodeCountDynamicMax": SLICES * HOSTS,
        "spot": True,
    }],
    "slurm:bundle": lab.BUNDLE,
}  # fmt: skip
_LISTS = {"sinfo": "sinfo", "squeue": "squeue", "nodes": "scontrol show node --oneliner"}


class _Metadata:
    """Metadata of the controller; its program stays the same."""

    def value(self, key: str) -> str:
        return {
            names.CONTROLLER_KEY: real.ADDRESS,
            names.HOME_KEY: real.REACHED.home,
            names.ENVIRONMENT_KEY: "dev",
            names.PROGRAM_KEY: "program 0",
        }[key]

    def wait(self, key: str, value: str, seconds: float) -> bool:
        time.sleep(seconds)
        return False


@contextmanager
def settled(folder: Path) -> Iterator[None]:
    """Read the settings of a folder's Pulumi.dev.yaml."""
    read = partial(engine.from_file, root=folder)
    with ExitStack() as stack:
        for place in ("fleet.environment", "fleet.owned", "slurm.boot"):
            stack.enter_context(mock.patch(f"{place}.from_file", read))
        yield


def measure(report: Callable[[str], None]) -> dict[str, Any]:
    """Return the figures, measured in namespaces of their own."""
    return dict(json.loads(real.inside("tests.proofs.slurm_scale").splitlines()[-1]))


def main() -> None:
    """Measure within the namespaces of this process."""
    with tempfile.TemporaryDirectory(prefix="proof-") as name:
        folder = Path(name)
        (folder / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": CONFIG}))
        settings = engine.from_file("dev", folder)
        slurm = real.Slurmctld(folder, settings)
        slurm.start("munge.service")
        slurm.start()
        cloud = Wide(folder / "lab")
        try:
            print(json.dumps(_measured(folder, settings, slurm, cloud)))
        finally:
            slurm.close()
            cloud.close()


class Wide(Lab):
    """A lab whose subnets hold the hosts of all slices."""

    def _insert(self, collection: str, body: dict[str, Any]) -> None:
        if cidr := body.get("ipCidrRange"):
            number = int(cidr.split(".")[2])
            body = {**body, "ipCidrRange": f"10.{64 + number}.0.0/20"}
        super()._insert(collection, body)


def _measured(folder: Path, settings: Settings, slurm: real.Slurmctld, cloud: Lab) -> dict[str, Any]:
    result: dict[str, Any] = {"slices": SLICES, "hosts": SLICES * HOSTS, "load_before": os.getloadavg()[0]}
    result["slurmctld_rss_mib_idle"] = _rss_mib(slurm)
    result["lists_s"] = {name: _timed(line.split()) for name, line in _LISTS.items()}
    hosts = f"tpu-[0-{SLICES - 1}]-w[0-{HOSTS - 1}]"
    result["resume_program_s"] = _timed([names.RESUME, hosts], user="slurm")
    for file in Path(names.REQUESTS).iterdir():
        file.unlink()
    environment = {**os.environ, **cloud.environment, STACK_ID_VARIABLE: lab.STACK}
    with Path(folder, "daemon.log").open("ab") as log:
        running = subprocess.Popen(
            [sys.executable, "-m", "tests.proofs.slurm_scale", str(folder)], env=environment, stderr=log
        )
        try:
            result["idle_look"] = _look(folder, cloud)
            result["resume"] = _resumed(slurm, cloud)
            result["look_with_50_slices"] = _look(folder, cloud)
            result["resume_of_the_others"] = _resumed(slurm, cloud, SLICES - JOBS)
            result["look_with_200_slices"] = _look(folder, cloud)
        finally:
            running.terminate()
            running.wait()
            print(Path(folder, "daemon.log").read_text()[-3000:], file=sys.stderr)
    result["slurmctld_rss_mib"] = _rss_mib(slurm)
    result["lists_with_jobs_s"] = {name: _timed(line.split()) for name, line in _LISTS.items()}
    return {**result, "load_after": os.getloadavg()[0], "on": described(())}


def _rss_mib(slurm: real.Slurmctld) -> float:
    status = Path(f"/proc/{slurm.pid()}/status").read_text()
    return round(int(status.split("VmRSS:")[1].split()[0]) / 1024, 1)


def _timed(line: Sequence[str], user: str = "") -> dict[str, float]:
    as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
    times_s = []
    for _ in range(RUNS):
        begun_s = time.monotonic()
        call([*as_user, *line])
        times_s.append(round(time.monotonic() - begun_s, 3))
    return spread(times_s)


def _resumed(slurm: real.Slurmctld, cloud: Lab, jobs: int = JOBS) -> dict[str, float]:
    """Submit jobs of a slice each; return seconds from the last submission until each thing held for all."""
    before, begun_s = len(_records(cloud)), time.monotonic()
    for _ in range(jobs):
        slurm.submit()
    submitted_s = time.monotonic()
    result: dict[str, float] = {"jobs": jobs, "submission_s": round(submitted_s - begun_s, 2)}
    counts: dict[str, Callable[[], int]] = {
        "allocated_s": lambda: len(call(["squeue", "--noheader", "--states=CF,R"]).splitlines()),
        "recorded_s": lambda: len(_records(cloud)),
        "created_s": lambda: len(cloud.everyone()),
        "ready_s": lambda: sum(node["state"] == "READY" for node in cloud.everyone().values()),
    }
    while counts and time.monotonic() < submitted_s + 600.0:
        for name, count in [*counts.items()]:
            if count() >= before + jobs:
                result[name] = round(time.monotonic() - submitted_s, 2)
                del counts[name]
        time.sleep(0.1)
    assert not counts, f"not within ten minutes: {[*counts]}"
    return result


def _records(cloud: Lab) -> list[str]:
    prefix = f"{lab.STACK}/fleets/"
    listed = cloud.request("GET", f"storage.googleapis.com/storage/v1/b/{lab.CONTROLLERS}/o", prefix=prefix)
    return [item["name"] for item in listed.get("items", ())]


def _look(folder: Path, cloud: Lab) -> dict[str, Any]:
    """Return the seconds of each of the next looks in which nothing was begun, and the requests of one."""
    file, looks = folder / "looks.jsonl", list[dict[str, Any]]()
    seen = len(file.read_text().splitlines()) if file.exists() else 0
    while len(looks) < RUNS:
        time.sleep(0.2)
        lines = file.read_text().splitlines() if file.exists() else []
        rows = [json.loads(line) for line in lines[seen:]]
        looks = [row for row in rows if not row["acted"]]
    times_s = [round(row["ended_s"] - row["begun_s"], 3) for row in looks[-RUNS:]]
    methods = looks[-1]["requests"]
    return {"seconds": spread(times_s), "requests": sum(methods.values()), "methods": methods}


def keep(folder: Path) -> None:
    """Be the daemon, and note each look's times."""
    lab.as_user()
    look, send, sent = daemon.Keeper.look, Client.send, Counter[str]()

    def counted(self: Client, method: str, url: str, *more: Any, **named: Any) -> Any:
        kind = "node" if "/tpu." in url else "object"
        listed = "list" if url.endswith(("/o", "/nodes")) and method == "GET" else method
        sent[f"{listed} {kind}"] += 1
        return send(self, method, url, *more, **named)

    def noted(self: Any, *arguments: Any) -> bool:
        sent.clear()
        begun_s = time.monotonic()
        acted = look(self, *arguments)
        row = {"begun_s": begun_s, "ended_s": time.monotonic(), "acted": acted, "requests": {**sent}}
        with (folder / "looks.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        return acted

    patches = mock.patch.object(daemon.Keeper, "look", noted), mock.patch.object(Client, "send", counted)
    with settled(folder), patches[0], patches[1]:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
        daemon.run(names.CONTROLLER, _Metadata(), System())  # type: ignore[arg-type]


if __name__ == "__main__":
    keep(Path(sys.argv[1])) if sys.argv[1:] else main()
