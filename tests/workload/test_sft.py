"""A tiny model is fine-tuned on conversations and text; killed, it ends with the same bits."""

import json
import signal
from pathlib import Path

import pytest

from tests.workload.chatting import tokenizer
from tests.workload.slice import RunFolder, Workers, train
from workload.__main__ import main

pytestmark = pytest.mark.slow
SETTINGS = [
    "model.layers=1",
    "model.d_model=32",
    "model.d_ff=64",
    "model.vocab_size=0",
    "data.sequence_length=64",
    'data.sources=[{path="chats", weight=3}, {path="text", weight=1}]',
    "data.loss=answers",
    "train.batch_size=4",
    "optimizer.warmup_steps=1",
    "compute.quick_compile=true",
    "observe.eval_path=chats",
    "observe.eval_every=5",
    "observe.eval_batches=1",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    folder = tokenizer(root / "tokenizer", "marked")
    rows = [{"instruction": f"what is {n} + {n}?", "output": f"{2 * n}"} for n in range(60)]
    (root / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "text.txt").write_text("the rule of a grid turns an input into an output. " * 40)
    shared = ["data", "prepare", "--tokenizer", str(folder), "--source"]
    assert main([*shared, str(root / "chats.jsonl"), "--chat", "--out", str(root / "chats")]) == 0
    assert main([*shared, str(root / "text.txt"), "--end", "</s>", "--out", str(root / "text")]) == 0
    return root


def line(root: Path, *more: str) -> list[str]:
    settings = [*SETTINGS, "train.steps=12", "checkpoint.every_steps=4", *more]
    return ["tiny.toml", "--name", "run", "--dir", str(root), *(f"--set={setting}" for setting in settings)]


@pytest.fixture
def environment(data: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    known = {"DATA_DIR": str(data), "GCE_METADATA_HOST": "127.0.0.1:1"}
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    return known


def test_killed_it_ends_with_the_bits_of_one_that_was_left_alone(
    environment: dict[str, str], tmp_path: Path
) -> None:
    assert train(["train", *line(tmp_path / "alone")]) == 0
    alone, killed = (RunFolder(tmp_path / name / "runs" / "run") for name in ("alone", "killed"))
    start = Workers(1, line(tmp_path / "killed"), environment, tmp_path / "logs")
    start.wait_until(lambda: killed.complete() != [])
    start.send(signal.SIGKILL, [0])
    start.wait()
    assert not (killed.path / "final.json").exists()
    assert train(["train", *line(tmp_path / "killed")]) == 0
    assert [event["step"] for event in killed.events("restore")] == [killed.events("restore")[0]["step"]]
    assert killed.json("final.json") == alone.json("final.json")
    assert killed.losses() == alone.losses()
    assert [event["loss"] for event in killed.events("eval")][-1] == alone.events("eval")[-1]["loss"]
    losses = alone.events("eval")
    assert losses[-1]["loss"] < losses[0]["loss"]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["data.loss="], "data.loss = '': must be given: data.sources[0].path = 'chats' holds conversations"),
        (['data.sources=[{path="text"}]', "observe.eval_path="], "data.loss = 'answers': must be empty"),
        (["data.sequence_length=8"], "chats.jsonl:51: has "),
    ],
)
def test_settings_that_dont_fit_the_data_are_refused_before_any_step(
    more: list[str],
    problem: str,
    environment: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train(["train", *line(tmp_path, *more)]) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
