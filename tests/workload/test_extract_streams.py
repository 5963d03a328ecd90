"""Stream that a host extracts: that of its number in a fleet or a job, or all of a folder."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.workload.extracting import ARCH, make_stream, save_weights
from workload.__main__ import main
from workload.errors import StoreError
from workload.runs.store import FolderStore, open_store


@pytest.fixture(scope="module", name="weights")
def _weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "model", ARCH)


def test_a_fleets_host_takes_its_own_stream(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stream_003.safetensors").write_bytes(make_stream([5, 60, 33]))
    (tmp_path / "mine.toml").write_text(
        f'[model]\nweights = "{weights}"\n[extract]\npoints = ["mlp_out.0"]\n'
    )
    line = ["extract", str(tmp_path / "mine.toml"), "--stream", str(tmp_path), "--dir", str(tmp_path / "out")]
    monkeypatch.delenv("TPU_MEMBER", raising=False)
    assert main([*line[:3], "gs://bucket/streams", *line[4:]]) == 2
    assert "$TPU_MEMBER = (not set): must be a number if --stream is a folder" in capsys.readouterr().err
    monkeypatch.setenv("TPU_MEMBER", "3")
    assert main(line) == 0
    output = capsys.readouterr()
    assert "1 shard of 3 samples, 1 made here" in output.out
    assert "bound by" in output.out
    assert main(line) == 0
    assert "1 shard of 3 samples, 0 made here" in capsys.readouterr().out
    monkeypatch.setenv("TPU_MEMBER", "4")
    assert main(line) == 2
    assert "stream_004.safetensors: no such stream" in capsys.readouterr().err


def test_a_slice_of_a_job_takes_the_stream_of_its_number(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = make_stream([5, 60, 33], number=1)
    (tmp_path / "stream_001.safetensors").write_bytes(raw)
    settings = [f'model.weights="{weights}"', 'extract.points=["mlp_out.0"]']
    line = ["extract", "qwen2.5-0.5b.toml", "--dir", str(tmp_path / "out")]
    line += [f"--set={item}" for item in settings]
    variables = {"WORKER_ID": "1", "WORKER_COUNT": "2", "COORDINATOR_ADDRESS": "a:1", "SLICE_COUNT": "2"}
    for name, value in {**variables, "MEGASCALE_NUM_SLICES": "2"}.items():
        monkeypatch.setenv(name, value)
    assert main([*line, "--stream", str(tmp_path / "stream_001.safetensors")]) == 2
    assert (
        "would be extracted by all slices of this job\n    fix: name their folder" in capsys.readouterr().err
    )
    assert main([*line, "--stream", str(tmp_path)]) == 0
    assert "1 shard of 3 samples, 1 made here" in capsys.readouterr().out
    assert "MEGASCALE_NUM_SLICES" not in os.environ, "libtpu would wait for the other slice"


def test_a_slice_of_several_hosts_extracts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"WORKER_ID": "1", "WORKER_COUNT": "4", "COORDINATOR_ADDRESS": "a:1"}.items():
        monkeypatch.setenv(name, value)
    assert main(["extract", "qwen2.5-0.5b.toml", "--stream", str(tmp_path), "--dir", str(tmp_path)]) == 2
    assert (
        "$WORKER_COUNT = 4: must equal $SLICE_COUNT: a host extracts alone, on its own chips"
        in capsys.readouterr().err
    )


def test_of_a_folder_here_all_streams_are_taken_one_after_another(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TPU_MEMBER", raising=False)
    for number in (3, 4):
        raw = make_stream([5, 60, 33], number=number)
        (tmp_path / f"stream_{number:03}.safetensors").write_bytes(raw)
    settings = [f'model.weights="{weights}"', 'extract.points=["mlp_out.0"]']
    line = ["extract", "qwen2.5-0.5b.toml", "--stream", str(tmp_path), "--dir", str(tmp_path / "out")]
    assert main([*line, *(f"--set={item}" for item in settings)]) == 0
    output = capsys.readouterr().out
    assert output.count("1 made here") == 2
    assert output.count("next: ") == 1
    made = tmp_path / "out" / "extractions" / "qwen2.5-0.5b" / "activations"
    assert sorted(entry.name for entry in made.iterdir()) == ["tpu_3", "tpu_4"]


def test_an_estimate_reads_weights_and_streams_of_a_bucket_without_tensors(
    weights: Path,
    tmp_path: Path,
    storage_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store, raw = open_store("gs://bucket/estimated"), make_stream([5, 60, 33])
    store.create("model/config.json", (weights / "config.json").read_bytes())
    store.create("model/model.safetensors", b"large")
    store.create("streams/streams.json", b'{"tokens": 98, "samples": 3, "sha256": {}}')
    store.create("streams/stream_000.safetensors", raw)
    line = ["extract", "qwen2.5-0.5b.toml", "--estimate", "--json", "--stream", f"{store.url}/streams"]
    line += ["--set", f"model.weights={store.url}/model", "--set"]
    assert main([*line, "extract.points=mlp_out.0"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 98
    assert [path.name for path in tmp_path.rglob("*.json")] == ["config.json"]
    assert not [*tmp_path.rglob("*.safetensors")]
    assert main([*line, "extract.points=mlp_out.40"]) == 2
    assert "mlp_out.40: the model has layers 0 to 3" in capsys.readouterr().err
    assert main([*line, "extract.points=mlp_out.0", "--set", "extract.positions=5000"]) == 2
    assert "5000: document 'doc-0' has only 5 tokens" in capsys.readouterr().err
    store.write("model/tokenizer.json", b"{}")
    assert main([*line, "extract.points=mlp_out.0"]) == 2
    assert f"another tokenizer, bytes, than the one of {store.url}/model\n" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--estimate"], []])
def test_streams_of_another_tokenizer_than_the_models_own_are_refused(
    flags: list[str], weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(weights, tmp_path / "model")
    (folder / "tokenizer.json").write_text("{}")
    (tmp_path / "s.jsonl").write_text('{"text": "a"}\n')
    streams = str(tmp_path / "streams")
    assert main(["data", "streams", "--source", str(tmp_path / "s.jsonl"), "--out", streams]) == 0
    output = capsys.readouterr().out
    assert "tokens are bytes; for a model that has a tokenizer of its own: --tokenizer" in output
    assert "1 sample, 1 token in 1 stream" in output
    line = ["extract", "qwen2.5-0.5b.toml", "--stream", streams, "--dir", str(tmp_path / "out"), *flags]
    line += ["--set", "extract.points=mlp_out.0", "--set"]
    assert main([*line, f"model.weights={weights}"]) == 0, "it has none"
    assert main([*line, f"model.weights={folder}"]) == 2
    error = capsys.readouterr().err
    assert f"was made with another tokenizer, bytes, than the one of {folder}\n    fix: " in error
    assert "data streams … --tokenizer FOLDER" in error
    index = json.loads((tmp_path / "streams" / "streams.json").read_text())
    assert (index["tokenizer"], index["tokenizer_sha256"]) == ("bytes", "bytes")


@pytest.mark.parametrize("member", [None, "3"])
@pytest.mark.parametrize(
    ("name", "rule"), [("prompts.jsonl", "is not a stream"), ("nowhere", "no such folder")]
)
def test_what_is_no_folder_of_streams_is_told(
    name: str,
    rule: str,
    member: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"text": "a"}\n')
    monkeypatch.delenv("TPU_MEMBER", raising=False)
    if member:
        monkeypatch.setenv("TPU_MEMBER", member)
    line = ["extract", "qwen2.5-0.5b.toml", "--stream", str(tmp_path / name), "--dir", str(tmp_path / "out")]
    if name == "prompts.jsonl":
        assert main([*line, "--estimate"]) == 2
        assert f"--stream = {tmp_path / name}: {rule}\n    fix: name a stream" in capsys.readouterr().err
    assert main(line) == 2
    output = capsys.readouterr().err
    assert f"--stream = {tmp_path / name}: {rule}\n    fix: name a stream, or the folder" in output
    assert "workload data streams" in output
    assert "TPU_MEMBER" not in output


def test_an_estimate_is_of_one_host_and_of_streams_that_are_there(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "streams.json").write_text('{"tokens": 1000, "samples": 10}')
    settings = (f'model.weights="{weights}"', 'extract.points=["mlp_out.0"]')
    line = ["extract", "qwen2.5-0.5b.toml", "--estimate", "--stream", str(tmp_path)]
    line += [f"--set={item}" for item in settings]
    assert main([*line, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["tokens"] == 1000
    assert facts["storage_dollars_per_month"] == pytest.approx(facts["size_bytes"] / 2**30 * 0.02)
    assert main([*line, "--slice", "v6e-16", "--set", "extract.points=[]"]) == 2
    output = capsys.readouterr().err
    assert "--slice = v6e-16: must be a type of a single host" in output
    assert "fix: one of v6e-1, v6e-4, v6e-8" in output
    assert "extract.points = []: is empty" in output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--set", "extract.positions=9999"], "9999: document 'doc-0' has only 5 tokens\n    fix: -5 to 4, "),
        (["--set", "extract.row_tokens=32"], "is less than the longest document, 'doc-1' of 60 tokens"),
        (["--name", "No"], "--name = 'No': must be made of"),
        (["--point", "mlp_out"], "--point = mlp_out: requires --format pkl.gz"),
        (["--format", "pkl.gz", "--point", "key"], "--point = key: must name one"),
        (["--set", "extract.points=mlp_out.1"], "extract.points was ['mlp_out.0'], is ['mlp_out.1']\n"),
        (["--set", "extract.positions=last"], "settings: extract.positions was ['all'], is ['last']\n"),
    ],
)
def test_an_estimate_refuses_what_a_start_refuses_with_the_same_message(
    change: list[str], message: str, begun: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    refusals = []
    for line in ([*begun, *change, "--estimate"], [*begun, *change]):
        assert main(line) == 2
        refusals.append(capsys.readouterr().err)
    assert message in refusals[0]
    assert refusals[0] == refusals[1]
    assert main([*begun, "--estimate"]) == 0  # of the same settings


def test_an_estimate_needs_no_weights_but_their_config_and_no_storage_of_its_run(
    begun: list[str],
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "config.json").write_bytes((weights / "config.json").read_bytes())
    line = [*begun, "--estimate", "--set", f'model.weights="{tmp_path}"']
    assert main(line) == 0
    output = capsys.readouterr()
    assert "98 of 98 tokens" in output.out
    assert f"not compared with the run's record: {tmp_path} holds no weights" in output.err

    def of_streams_alone(store: FolderStore, *rest: Any) -> Any:
        if "/extractions/" in store.url:
            raise StoreError("no access")
        return whole(store, *rest)

    for method in ("read", "list"):
        whole = getattr(FolderStore, method)
        with monkeypatch.context() as patched:
            patched.setattr(FolderStore, method, of_streams_alone)
            assert main([*begun, "--estimate"]) == 0
        output = capsys.readouterr()
        assert "98 of 98 tokens" in output.out
        assert output.err == "  … not compared with the run's record: no access\n"


@pytest.fixture(scope="module", name="begun")
def _begun(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Command line of an extraction that is done."""
    root = tmp_path_factory.mktemp("begun")
    (root / "stream_003.safetensors").write_bytes(make_stream([5, 60, 33]))
    (root / "streams.json").write_text('{"tokens": 98, "samples": 3, "sha256": {}}')
    line = ["extract", "qwen2.5-0.5b.toml", "--stream", str(root), "--dir", str(root / "out")]
    line += [f"--set={item}" for item in (f'model.weights="{weights}"', 'extract.points=["mlp_out.0"]')]
    assert main(line) == 0
    return line
