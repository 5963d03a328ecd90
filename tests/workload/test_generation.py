"""An exported model is whole: transformers reads its tokenizer, begins as training did, and stops."""

import json
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.limits import HANG_S
from tests.parity import environment
from tests.workload.slice import SETTINGS
from tests.workload.test_tokens import with_begin
from workload.__main__ import main
from workload.data.prepare import prepare
from workload.data.tokenizers import HuggingFace
from workload.model import decoder, huggingface
from workload.model.architecture import Architecture
from workload.model.generation import Generation

BEGIN, END, CHAT_END = 18, 1, 17
ARCH = Architecture(layers=1, d_model=32, heads=4, d_ff=64, vocab_size=19)


def that_ends_at_once(folder: Path) -> Path:
    """Weights of a model that says the end after whatever it is given, meant for 512 tokens and for chats."""
    shapes = decoder.shapes(ARCH)
    zeros = {name: np.zeros(leaf.shape, ml_dtypes.bfloat16) for name, leaf in shapes["layers"].items()}
    ends = {name: np.zeros(leaf.shape, np.float32) for name, leaf in shapes.items() if name != "layers"}
    ends["embed_VxD"] += 1
    ends["final_norm_D"] += 1
    ends["unembed_VxD"][END] = 1
    chat = Generation((), (CHAT_END,), 512)
    huggingface.save(folder, {**ends, "layers": zeros}, ARCH, "float32", chat)
    return folder


def test_the_weights_begin_token_remains_where_documents_have_none() -> None:
    known = Generation((BEGIN,), (CHAT_END,), 512)
    assert Generation.of_run((), END, 64, known) == Generation((BEGIN,), (END, CHAT_END), 512)
    assert Generation.of_run((2,), END, 1024, known) == Generation((2,), (END, CHAT_END), 1024)


def test_files_and_values_of_other_kinds_beside_weights_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("[1]")
    for length in ([8192], "long", -3, True):
        content = {"max_position_embeddings": length, "eos_token_id": [END, "x"]}
        (tmp_path / "config.json").write_text(json.dumps(content))
        assert Generation.of_weights(tmp_path) == Generation((), (END,), 0)


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    source = tmp_path / "documents.jsonl"
    texts = [f"the quick fox {'a dog ' * n}" for n in range(60)]
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = HuggingFace(with_begin(tmp_path / "words"))
    assert (tokenizer.begin_of_document, tokenizer.end_of_document) == ((BEGIN,), END)
    prepare([source], tmp_path / "tokens", tokenizer)
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "tokens"))
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    settings = [setting for setting in SETTINGS if not setting.startswith("model.")]
    settings += ["train.steps=1", "train.batch_size=4", "optimizer.warmup_steps=0"]
    settings += ["optimizer.learning_rate=1e-9", f"train.init_from={that_ends_at_once(tmp_path / 'given')}"]
    config = tmp_path / "only.toml"
    config.write_text("")
    line = [str(config), "--name", "whole", "--dir", str(tmp_path)]
    line += [f"--set={setting}" for setting in settings]
    assert main(["train", *line]) == 0
    out = tmp_path / "exported"
    assert main(["checkpoints", "export", str(tmp_path / "runs" / "whole"), "--out", str(out)]) == 0
    return out


@pytest.mark.slow
def test_an_export_holds_its_tokenizer_and_where_a_text_begins_and_ends(exported: Path) -> None:
    config = json.loads((exported / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (BEGIN, [END, CHAT_END])
    assert config["max_position_embeddings"] == 512, "what the weights were meant for, not training's length"
    generation = json.loads((exported / "generation_config.json").read_text())
    assert generation == {"bos_token_id": BEGIN, "eos_token_id": [END, CHAT_END]}
    settings = json.loads((exported / "tokenizer_config.json").read_text())
    assert (settings["bos_token"], settings["eos_token"]) == ("<|begin_of_text|>", "<|end_of_text|>")
    tokens = (exported.parent / "tokens" / "tokenizer.json").read_bytes()
    assert (exported / "tokenizer.json").read_bytes() == tokens


@pytest.mark.prove
@pytest.mark.slow
def test_transformers_begins_as_training_did_and_stops(exported: Path) -> None:
    script = Path(environment.__file__).with_name("generate.py")
    line = [environment.python(), script, exported, "the quick fox"]
    run = subprocess.run(line, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert run.returncode == 0, run.stderr
    output = json.loads(run.stdout.splitlines()[-1])
    assert output["prompt"] == [BEGIN, 2, 3, 5]
    assert output["found"] == [*output["prompt"], END], "12 tokens, had it not stopped"
    assert (output["bos"], output["eos"]) == (BEGIN, END)
