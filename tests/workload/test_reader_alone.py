"""Activations are read where nothing but NumPy is installed, and the wheel asks for no more than that."""

import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from email.parser import Parser
from pathlib import Path

import numpy as np
import pytest

from infra.publish.wheels import build_workload
from tests.workload.extracting import ARCH, CONFIG, extract, make_stream, save_weights
from workload.activations.reader import Activations
from workload.data import stream as streams
from workload.runs.store import FolderStore

# Whatever else this environment holds is as if it weren't there.
ALONE = """
import sys

class Alone:
    def find_spec(self, name, path=None, target=None):
        ours = ("numpy", "settings_schema", "views", "workload")
        if name.partition(".")[0] not in (*sys.stdlib_module_names, *ours):
            raise ModuleNotFoundError(f"{name} isn't installed", name=name)

sys.meta_path.insert(0, Alone())
"""
READ = """
import json
from workload.activations.batches import batches
from workload.activations.reader import Activations

activations = Activations(sys.argv[1])
values = activations["doc-1"]["resid_post.2"]
some = next(batches(activations, "resid_post.2", size=8, seed=1))
print(json.dumps([str(values.dtype), values.tolist(), list(some.shape), str(some.dtype)]))
"""
BITS = """
from workload.activations.batches import batches
from workload.activations.reader import Activations

point, tokens, positions = next(
    batches(Activations(sys.argv[1]), ("resid_post.2", "tokens", "positions"), size=21, bits=True)
)
print(point.dtype, point.astype(int).sum(), tokens.sum(), positions.sum())
"""
COMMANDS = """
from workload.__main__ import main
for line in sys.argv[1:]:
    print(f"status {main(['activations', *line.split()])}")
"""
TRAIN = """
from workload.__main__ import main
print(f"status {main(['train', 'tiny.toml', '--dir', sys.argv[1]])}")
"""


def alone(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", ALONE + script, *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False)


@pytest.fixture(name="run", scope="module")
def _run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    (root / "stream_003.safetensors").write_bytes(make_stream([5, 7, 9]))
    config = replace(CONFIG, extract=replace(CONFIG.extract, dtype="bfloat16"))
    stream = streams.read(str(root / "stream_003.safetensors"))
    extract(config, stream, save_weights(root / "weights", ARCH), FolderStore(root / "run"))
    return root / "run"


def test_bfloat16_is_read_exactly_as_float32(run: Path) -> None:
    done = alone(READ, str(run))
    assert done.returncode == 0, done.stderr
    dtype, values, shape, of_batch = json.loads(done.stdout)
    stored = Activations(str(run))["doc-1"]["resid_post.2"]
    assert str(stored.dtype) == "bfloat16"
    assert (dtype, of_batch, shape) == ("float32", "float32", [8, ARCH.d_model])
    assert np.array_equal(np.array(values, np.float32), stored.astype(np.float32))


def test_the_commands_need_no_more(run: Path) -> None:
    lines = (f"verify {run}", f"show {run}", f"show {run} --document doc-2 --json", f"stats {run}")
    done = alone(COMMANDS, *lines)
    assert done.returncode == 0, done.stderr
    statuses = [line for line in done.stdout.splitlines() if line.startswith("status ")]
    assert statuses == ["status 1", "status 0", "status 0", "status 0"]  # seven of eight streams are missing
    assert '"id": "doc-2"' in done.stdout


def test_bfloat16_is_read_as_its_bits_for_torch(run: Path) -> None:
    done = alone(BITS, str(run))
    assert done.returncode == 0, done.stderr
    shards = list(Activations(str(run)).shards())
    values = np.concatenate([item.read("resid_post.2").view(np.uint16).astype(int) for item in shards])
    tokens, positions = (int(sum(item.read(key).sum() for item in shards)) for key in ("tokens", "positions"))
    assert done.stdout.split() == ["uint16", str(values.sum()), str(tokens), str(positions)]


def test_training_says_what_it_needs(tmp_path: Path) -> None:
    done = alone(TRAIN, str(tmp_path))
    assert done.stdout == "status 1\n"
    assert (
        "this command needs jax, which isn't installed\n    fix: run it on a host or in a chec" in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_a_bucket_needs_one_more_and_says_which(run: Path) -> None:
    done = alone(COMMANDS, "show gs://bucket/extractions/first")
    assert done.stdout == "status 1\n"
    assert "needs requests, which isn't installed" in done.stderr
    assert "fix: pip install google-cloud-storage" in done.stderr


def test_the_wheel_asks_for_numpy_alone(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_workload(tmp_path)) as wheel:
        (name,) = (item for item in wheel.namelist() if item.endswith("METADATA"))
        about = Parser().parsestr(wheel.read(name).decode())
    calls = about.get_all("Requires-Dist") or []
    assert [item for item in calls if "extra ==" not in item] == ["numpy"]
    assert {"reader", "bucket", "host", "tpu"} <= {*(about.get_all("Provides-Extra") or [])}
