"""The commands of the guide to fine-tuning, with its recipes for Llama, up to a kill, a resume and an export.

The recipes' files are those of the package; the weights, the batch and the number of steps alone are smaller.
"""

import json
import os
import re
import shlex
import signal
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.workload.chatting import tokenizer
from tests.workload.slice import RunFolder, Workers, train
from tests.workload.test_model import parameters
from tools.blocks import ROOT
from workload.__main__ import main
from workload.model import huggingface
from workload.model.generation import Generation
from workload.train import config as configs

pytestmark = pytest.mark.slow

GUIDE = (ROOT / "docs/guides/fine-tuning.md").read_text("utf-8").replace("\\\n", "")
PREPARE = shlex.split(re.findall("(?m)^    workload (data prepare .*)", GUIDE)[0])
RUN = shlex.split(re.findall(r"run: (train [^}]*)}", GUIDE)[0])
BUCKET = "gs://my-project-checkpoints/data/"
WEIGHTS = PREPARE[PREPARE.index("--tokenizer") + 1].rstrip("/")
WIDTHS = ["model.layers=2", "model.d_model=32", "model.heads=4", "model.kv_heads=2", "model.head_dim=8",
          "model.d_ff=64", "model.vocab_size=328"]  # fmt: skip
SMALL = ["model=weights", "data.sequence_length=96", "train.batch_size=4", "train.steps=40",
         "compute.quick_compile=true",
         "checkpoint.every_steps=10", "observe.eval_path=chats", "observe.eval_every=10",
         "observe.eval_batches=2", "checkpoint.keep_best=true"]  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small weights of the recipe's architecture, and conversations prepared as the guide does."""
    root = tmp_path_factory.mktemp("fine-tuning")
    arch = configs.load("llama-3.1-8b-sft.toml", WIDTHS).decoder
    huggingface.save(root / WEIGHTS, parameters(arch), arch, "bfloat16", Generation(longest=8192))
    tokenizer(root / WEIGHTS, "llama")
    rows = [
        {"messages": [{"role": "user", "content": f"what is {n} + {n}?"},
                      {"role": "assistant", "content": f"it is {2 * n}"}]}
        for n in range(80)
    ]  # fmt: skip
    (root / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = Path.cwd()
    os.chdir(root)
    try:
        assert main(PREPARE) == 0
    finally:
        os.chdir(before)
    return root


@pytest.mark.parametrize("recipe", ["sft", pytest.param("lora", marks=pytest.mark.prove)])
def test_a_recipe_trains_is_killed_resumes_validates_and_is_exported(
    recipe: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"DATA_DIR": str(data), "GCE_METADATA_HOST": "127.0.0.1:1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    line = [word.replace("sft", recipe).replace(BUCKET, "") for word in RUN]
    program, *words = [*line, "--dir", str(tmp_path), *(f"--set={setting}" for setting in SMALL)]
    assert program == "train"
    run = RunFolder(tmp_path / "runs" / recipe)
    start = Workers(1, words, environment, tmp_path / "logs")
    start.wait_until(lambda: run.complete() != [])
    start.send(signal.SIGKILL, [0])
    start.wait()
    assert not (run.path / "final.json").exists()
    assert train([program, *words]) == 0
    assert run.events("restore")[0]["step"] >= 10
    losses = {event["step"]: event["loss"] for event in run.events("eval")}
    assert [*sorted(losses)] == [10, 20, 30, 40]
    assert losses[40] < losses[10]
    assert (
        run.json("final.json")["best"]
        == run.json("status.json")["best"]
        == min(losses, key=losses.__getitem__)
    )
    frozen = load_file(data / WEIGHTS / "model.safetensors")
    merged = ["--merged"] if recipe == "lora" else []
    for options in ([], merged) if merged else ([],):
        out = tmp_path / f"exported{''.join(options)}"
        assert main(["checkpoints", "export", str(run.path), "--out", str(out), *options]) == 0
        assert "chat_template" in json.loads((out / "tokenizer_config.json").read_text())
        if (out / "adapter_config.json").exists():
            assert json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"] == WEIGHTS
            assert len(load_file(out / "adapter_model.safetensors")) == 2 * 7 * 2
        else:
            whole = load_file(out / "model.safetensors")
            assert {name: value.shape for name, value in whole.items()} == {
                name: value.shape for name, value in frozen.items()
            }
            assert any((whole[name] != frozen[name]).any() for name in frozen)
