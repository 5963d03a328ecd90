"""T4 and T7: what a checkpoint costs, and what a start does, on the rehearsal's storage.

The storage is the emulated one, on loopback and this machine's disk: its bandwidth is not a
bucket's, and its server shares the CPUs with the trainer. Bytes and shares are what carries over.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.machine import described, spread
from tests.rehearsal.cloud.storage.storage_front import PROJECT, Front
from workload.data.prepare import prepare
from workload.train import config as configs
from workload.train.interval import STALL_SHARE

BUCKET = "bucket"
SHORT = ["--set=data.sequence_length=128", "--set=train.batch_size=1"]  # steps of a fraction of a second
SAVED_STEPS = 200


class Bench:
    """A bucket on loopback with token files beside it, and a trainer that uses them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.front = Front(folder / "storage")
        self.front.request("POST", "b", {"name": BUCKET}, project=PROJECT)
        make_tokens(folder / "tokens")

    def start(self, run: str, *more: str) -> "subprocess.Popen[str]":
        """Start the trainer."""
        environment = {
            **os.environ,
            "CHECKPOINT_BUCKET": BUCKET,
            "DATA_DIR": str(self.folder / "tokens"),
            "GCE_METADATA_HOST": "127.0.0.1:1",
            "JAX_COMPILATION_CACHE_DIR": f"gs://{BUCKET}/compilation-cache",
            "JAX_PLATFORMS": "cpu",
            "STORAGE_EMULATOR_HOST": self.front.url,
            "TENSORSTORE_GCS_HTTP_URL": self.front.url,
        }
        line = [sys.executable, "-m", "workload", "train", str(CONFIG), "--name", run, *SHORT, *more]
        return subprocess.Popen(
            line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the bytes of every object below a prefix."""
        listing = self.front.request("GET", f"b/{BUCKET}/o", prefix=prefix).json
        return {item["name"]: int(item["size"]) for item in listing.get("items", [])}

    def lines(self, prefix: str) -> list[dict[str, Any]]:
        """Every line of JSON below a prefix, in the order of names."""
        return [
            json.loads(line)
            for name in sorted(self.sizes(prefix))
            for line in self.front.read(BUCKET, name).body.splitlines()
        ]

    def forget_compiled(self) -> None:
        """Empty the compilation cache."""
        for name in self.sizes("compilation-cache/"):
            self.front.request("DELETE", f"b/{BUCKET}/o/{name.replace('/', '%2F')}")


CONFIG = Path(__file__).with_name("small.toml")


def make_tokens(out: Path) -> None:
    """Token files of Python's own sources, about a megabyte of real text."""
    library = Path(os.__file__).parent
    prepare([library / "email", library / "asyncio"], out)


@contextmanager
def bench() -> Iterator[Bench]:
    """Provide a bench for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        opened = Bench(Path(folder))
        try:
            yield opened
        finally:
            opened.front.close()


def saves(rounds: int) -> dict[str, Any]:
    """T4: how long training stands still for saves at the interval that it chose, and what they write."""
    params = configs.load(str(CONFIG)).decoder.parameters()
    stalls, bytes_each, intervals = [], [], []
    with bench() as current:
        for number in range(rounds):
            run = f"saves-{number}"
            process = current.start(run, f"--set=train.steps={SAVED_STEPS}")
            output, _ = process.communicate()
            if process.returncode:
                raise SystemExit(output[-3000:])
            (accounts,) = [line["accounts"] for line in current.lines(f"runs/{run}/goodput/")]
            events = current.lines(f"runs/{run}/events/")
            busy_s = sum(accounts[name] for name in ("data", "step", "save"))
            stalls.append(accounts["save"] / busy_s)
            intervals.append([event["every_steps"] for event in events if event["kind"] == "interval"])
            saved = [event["step"] for event in events if event["kind"] == "save"]
            written = sum(current.sizes(f"runs/{run}/checkpoints/{saved[-1]}/").values())
            bytes_each.append(written / params)
            print(f"round {number + 1}: {stalls[-1]:.2%} of the time, saved {saved}", file=sys.stderr)
    return {
        "params": params,
        "stall_share": spread(stalls),
        "stall_share_at_most": STALL_SHARE,
        "bytes_a_parameter": spread(bytes_each),
        "every_steps": intervals,
        "on": described(["jax", "orbax-checkpoint", "tensorstore"]),
    }


def restarts(rounds: int) -> dict[str, Any]:
    """T7: from a start to the end of its first step, with the compiled step in the bucket and without."""
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    compiles: dict[str, list[float]] = {"without": [], "with": []}
    with bench() as current:
        _first_step_s(current)  # leaves the checkpoint that the others resume from
        for number in range(rounds):
            for kind in seconds:
                if kind == "without":
                    current.forget_compiled()
                else:
                    assert current.sizes("compilation-cache/"), "nothing was kept"
                seconds[kind].append(_first_step_s(current))
                compiles[kind].append(current.lines("runs/restarts/goodput/")[-1]["accounts"]["compile"])
            print(f"round {number + 1}: {seconds}", file=sys.stderr)
        cache_bytes = sum(current.sizes("compilation-cache/").values())
    return {
        "first_step_s": {kind: spread(values) for kind, values in seconds.items()},
        "compile_s": {kind: spread(values) for kind, values in compiles.items()},
        "cache_bytes": cache_bytes,
        "on": described(["jax", "orbax-checkpoint", "tensorstore"]),
    }


def _first_step_s(current: Bench) -> float:
    """Restart the run, announce a preemption after its first step, and return the seconds until then."""
    begun = time.monotonic()
    process = current.start("restarts", "--set=train.steps=1000")
    assert process.stdout
    output, first_step_s = "", 0.0
    for line in process.stdout:
        output += line
        if line.startswith("step ") and not first_step_s:
            first_step_s = time.monotonic() - begun
            process.send_signal(signal.SIGTERM)
    process.wait()
    if not first_step_s or "preempted" not in output:
        raise SystemExit(output[-3000:])
    return first_step_s
