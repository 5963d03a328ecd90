"""T4: what a checkpoint costs, on the rehearsal's storage.

The storage is the emulated one, on loopback and this machine's disk: its bandwidth is not a
bucket's, and its server shares the CPUs with the trainer. Bytes and shares are what carries over.
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.machine import described, spread
from tests.rehearsal.cloud.storage.storage_front import PROJECT, Front
from workload.data.prepare import prepare
from workload.train import config as configs
from workload.train.interval import STALL_SHARE

CONFIG = Path(__file__).with_name("small.toml")
BUCKET = "bucket"
SHORT = ["--set=data.sequence_length=128", "--set=train.batch_size=1"]  # steps of a fraction of a second
SAVED_STEPS = 200


class Bench:
    """A bucket on loopback with token files beside it, and a trainer that uses them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.front = Front(folder / "storage")
        self.front.request("POST", "b", {"name": BUCKET}, project=PROJECT)
        library = Path(os.__file__).parent  # about a megabyte of real text
        prepare([library / "email", library / "asyncio"], folder / "tokens")
        self.close = self.front.close

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


def saves(rounds: int) -> dict[str, Any]:
    """T4: how long training stands still for saves at the interval that it chose, and what they write."""
    params = configs.load(str(CONFIG)).decoder.parameters()
    stalls, bytes_each, intervals = [], [], []
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as folder,
        closing(Bench(Path(folder))) as current,
    ):
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
