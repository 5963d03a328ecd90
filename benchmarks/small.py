"""A small model trained on the CPUs at hand, by ours and by peers in turn: tokens a second.

All train the same Llama in float32 with AdamW and clipping, the same batch, keeping all
activations. Ours is the trainer as users start it; of each, the steps after the second count.
"""

import json
import re
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import described, spread
from benchmarks.model import CONFIG, make_tokens
from benchmarks.peers import PINS, last, maxtext_base, python, run
from tests.parity import environment
from workload.train import config as configs

HERE = Path(__file__).parent
SIZES = ("layers", "d_model", "heads", "kv_heads", "d_ff", "vocab_size")
STEPS, WARM_UP = 10, 2


def measure(rounds: int) -> dict[str, Any]:
    """Tokens a second of each, over some rounds in which all take their turn."""
    config = configs.load(str(CONFIG))
    tokens = config.train.batch_size * config.data.sequence_length
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        root = Path(folder)
        sizes = {
            "model": {name: getattr(config.model, name) for name in SIZES},
            "batch_size": config.train.batch_size,
            "sequence_length": config.data.sequence_length,
            "steps": STEPS,
        }  # fmt: skip
        (root / "sizes.json").write_text(json.dumps(sizes))
        make_tokens(root / "tokens")
        trainers: dict[str, Callable[[int], list[float]]] = {
            "ours": lambda number: measure_ours(root, f"run-{number}"),
            "transformers + torch": lambda _: torch(root, "eager"),
            "transformers + torch.compile": lambda _: torch(root, "compile"),
            "Levanter": lambda _: levanter(root),
            "MaxText": lambda _: maxtext(root, sizes),
        }
        mapping: dict[str, list[float]] = {name: [] for name in trainers}
        for number in range(rounds):
            for name, train in trainers.items():
                mapping[name].append(tokens / median(train(number)[WARM_UP:]))
                print(f"round {number + 1}: {name} {mapping[name][-1]:,.0f} tokens/s", file=sys.stderr)
    return {
        "tokens_per_s": {name: spread(values) for name, values in mapping.items()},
        "params": config.decoder.parameters(),
        "batch": config.train.batch_size,
        "length": config.data.sequence_length,
        "on": described(["jax", "jaxlib"]) | {"peers": PINS},
    }


def measure_ours(root: Path, name: str) -> list[float]:
    """Return the trainer as a process of its own; the seconds between the ends of steps."""
    line = [sys.executable, "-m", "workload", "train", str(CONFIG), "--dir", str(root), "--name", name]
    output = run([*line, f"--set=train.steps={STEPS}"], {"DATA_DIR": str(root / "tokens")})
    result = [
        json.loads(entry)
        for path in (root / "runs" / name / "progress").glob("*.jsonl")
        for entry in path.read_text().splitlines()
    ]
    assert len(result) == STEPS, output
    ends = [datetime.fromisoformat(entry["time"]).timestamp() for entry in result]
    return [later - before for before, later in pairwise(ends)]


def torch(root: Path, mode: str) -> list[float]:
    """Seconds of each step."""
    line = [environment.python(), str(HERE / "peers" / "torch_steps.py"), str(root / "sizes.json"), mode]
    return seconds(line)


def levanter(root: Path) -> list[float]:
    """Seconds of each step."""
    line = [str(python("levanter")), str(HERE / "peers" / "levanter_steps.py"), str(root / "sizes.json")]
    return seconds(line)


def maxtext(root: Path, sizes: dict[str, Any]) -> list[float]:
    """Seconds of each step, from MaxText's own log."""
    interpreter, model = python("maxtext"), sizes["model"]
    line = [
        str(interpreter), "-m", "maxtext.trainers.pre_train.train", maxtext_base(interpreter),
        f"base_output_directory={root}", "run_name=small", "hardware=cpu", "dataset_type=synthetic",
        "enable_checkpointing=false", "enable_goodput_recording=false", "attention=dot_product",
        "dtype=float32", "remat_policy=none", f"steps={sizes['steps']}", "sharding_tolerance=1.0",
        f"per_device_batch_size={sizes['batch_size']}", f"max_target_length={sizes['sequence_length']}",
        f"base_emb_dim={model['d_model']}", f"base_mlp_dim={model['d_ff']}",
        f"vocab_size={model['vocab_size']}",
        f"base_num_query_heads={model['heads']}", f"base_num_kv_heads={model['kv_heads']}",
        f"base_num_decoder_layers={model['layers']}", f"head_dim={model['d_model'] // model['heads']}",
    ]  # fmt: skip
    # On CPU it asks for what a launcher would set, even for one process.
    alone = {"JOB_INDEX": "0", "JOB_COMPLETION_INDEX": "0", "PROCESSES_IN_JOB": "1", "JAX_PROCESS_COUNT": "1"}
    output = run(line, {**alone, "JAX_COORDINATOR_ADDRESS": "127.0.0.1", "DECOUPLE_GCLOUD": "TRUE"})
    return [float(item) for item in re.findall(r"completed step: \d+, seconds: ([\d.]+)", output)]


def seconds(line: list[str]) -> list[float]:
    """Of each step, as a command prints them."""
    result: list[float] = last(run(line))["seconds"]
    return result
