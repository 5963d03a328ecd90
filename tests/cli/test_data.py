"""`tpu data` against a storage server, through Google's own client."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from google.cloud import storage

from cli.__main__ import main
from infra.publish import own_data, upload
from tests.infra.recording import BASE

BUCKET = "test-checkpoints"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "checkout").mkdir()
    text = yaml.safe_dump({"config": {**BASE, "storage:bucketName": BUCKET, "data:sizeGib": 10}})
    (tmp_path / "checkout" / "Pulumi.dev.yaml").write_text(text)
    return tmp_path / "checkout"


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as of `workload data prepare`, in the working folder."""
    monkeypatch.chdir(tmp_path)
    folder = Path("tokens")
    (folder / "more").mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "tokens-00000.bin").write_bytes(bytes(range(256)) * 50_000)  # more than one request holds
    (folder / "more" / "b.txt").write_text("b")
    return folder


def stored(bucket: storage.Bucket) -> dict[str, bytes]:
    return {blob.name: blob.download_as_bytes() for blob in bucket.list_blobs()}


def test_a_folder_lies_below_its_name_and_the_next_command_reads_it(
    root: Path, bucket: storage.Bucket, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "put", "dev", "tokens/"], root) == 0
    assert stored(bucket) == {
        f"data/tokens/{path.relative_to(tokens)}": path.read_bytes()
        for path in tokens.rglob("*")
        if path.is_file()
    }
    output = capsys.readouterr().out
    assert output.startswith(f"gs://{BUCKET}/data/tokens: 3 files, 12.8 MB, to upload; 0 are")
    url = f"gs://{BUCKET}/data/tokens"
    held_out = f"  train CONFIG --set observe.eval_path={url}, if it is held out\n"
    assert output.endswith(f"\n  train tiny.toml --set data.path={url}\n{held_out}")


@pytest.mark.parametrize(("files", "runs"), [
    (["manifest.json", "marks-00000.bin"], ["train llama-3.1-8b-sft.toml --set data.path=@",
                                            "train CONFIG --set observe.eval_path=@, if it is held out"]),
    (["config.json", "tokenizer.json"], ["train tiny.toml --set model=weights --set train.init_from=@",
                                         "extract qwen2.5-0.5b.toml --set model.weights=@ --stream URL"]),
])  # fmt: skip
def test_conversations_and_weights_have_commands_of_their_own(
    files: list[str], runs: list[str], root: Path, bucket: storage.Bucket, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "mine").mkdir()
    for name in files:
        (tmp_path / "mine" / name).write_text("{}")
    assert main(["data", "put", "dev", str(tmp_path / "mine")], root) == 0
    printed = [run.replace("@", f"gs://{BUCKET}/data/mine") for run in runs]
    assert [line.strip() for line in capsys.readouterr().out.splitlines()[-len(runs) :]] == printed


def test_an_interrupted_upload_resumes_and_other_bytes_are_never_replaced(
    root: Path, bucket: storage.Bucket, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.blob("data/tokens/more/b.txt").upload_from_string("b")
    assert main(["data", "put", "dev", "tokens"], root) == 0
    assert "2 files uploaded, 1 were there already" in capsys.readouterr().out
    generations = {blob.name: blob.generation for blob in bucket.list_blobs()}
    (tokens / "more" / "b.txt").write_text("c")
    (tokens / "new.txt").write_text("new")
    assert main(["data", "put", "dev", "tokens"], root) == 1
    assert "/data/tokens/more/b.txt has other bytes than tokens/more/b.txt\n" in capsys.readouterr().err
    assert {blob.name: blob.generation for blob in bucket.list_blobs()} == generations


@pytest.mark.parametrize(("content", "status"), [("b", 0), ("x", 1)])
def test_an_object_that_somebody_creates_meanwhile_is_compared(
    content: str, status: int, root: Path, bucket: storage.Bucket, tokens: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    create = upload.create

    def late(blob: storage.Blob, path: Path) -> bool:
        if blob.name.endswith("b.txt"):
            bucket.blob(blob.name).upload_from_string(content)
        return create(blob, path)

    monkeypatch.setattr(upload, "create", late)
    assert main(["data", "put", "dev", "tokens"], root) == status
    output = capsys.readouterr()
    assert ("2 files uploaded, 1 were" in output.out) == (status == 0)
    assert ("has other bytes" in output.err) == (status == 1)


def test_what_cant_be_uploaded_is_refused_by_name_all_at_once(
    root: Path, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tokens / "empty.txt").touch()
    (tokens / ".cache").mkdir()
    (tokens / ".cache" / "lock").touch()
    (tokens / "gone").symlink_to("nowhere")
    (tokens / "linked").symlink_to("more")
    (tokens / "line\nbreak").write_text("a")
    assert main(["data", "put", "dev", "tokens", "missing", "--to", "all"], root) == 2
    error = capsys.readouterr().err
    assert "6 problems in the files to upload:" in error
    for problem in (
        "tokens/empty.txt: is empty", "tokens/.cache: is hidden", "tokens/gone: no such file",
        "tokens/linked: links to a folder", "has control characters", "missing: no such file or folder",
    ):  # fmt: skip
        assert problem in error


def test_hidden_files_are_left_out_on_request(tokens: Path) -> None:
    (tokens / ".cache").mkdir()
    (tokens / ".cache" / "lock").touch()
    assert len(own_data.gather([tokens], skip_hidden=True)) == 3


def test_of_several_sources_each_folder_keeps_its_name(
    tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], root: Path, bucket: storage.Bucket
) -> None:
    Path("llama").mkdir()
    Path("llama/config.json").write_text("{}")
    Path("one.txt").write_text("1")
    assert main(["data", "put", "dev", "tokens", "llama", "one.txt", "--to", "all"], root) == 0
    assert {*stored(bucket)} >= {
        "data/all/tokens/manifest.json",
        "data/all/llama/config.json",
        "data/all/one.txt",
    }
    assert f"--set train.init_from=gs://{BUCKET}/data/all/llama\n" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "error"), [
    (["put", "dev"], "SOURCE: nothing to upload is named"),
    (["put", "dev", "a", "b"], "--to: 2 sources need a name"),
    (["put", "dev", "gs://other/tokens"], "SOURCE: gs://other/tokens is no path of this machine"),
    (["put", "dev", "a", "--to", "../runs"], "--to: '../runs' must be 1 to 100 letters"),
    (["put", "dev", "--hub", "llama"], "--hub llama: --hub takes an id of the hub"),
    (["put", "dev", "a", "--hub", "a/b"], "a beside --hub"),
    (["put", "dev", "tokens/manifest.json", "tokens/manifest.json", "--to", "a"], "has the name of tokens/m"),
    (["snapshot", "dev", "tokens", "--name", "My_Data"], "--name: 'My_Data' must be"),
    (["snapshot", "dev", "tokens", "--zone", "europe-west4-a"], "--zone: europe-west4-a isn't in us-east5"),
])  # fmt: skip
def test_a_wrong_line_is_refused_with_its_fix(
    words: list[str], error: str, root: Path, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", *words], root) == 2
    output = capsys.readouterr().err
    assert error in output
    assert "\n    fix: " in output


def test_a_model_of_the_hub_is_two_printed_commands(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "put", "dev", "--hub", "meta-llama/Llama-3.1-8B"], root) == 0
    assert capsys.readouterr().out.splitlines() == [
        "hf download meta-llama/Llama-3.1-8B --local-dir Llama-3.1-8B"
        " --include '*.json' '*.safetensors' '*.jinja'",
        "tpu data put dev Llama-3.1-8B --skip-hidden",
    ]


STAND_INS = """
tpu() { printf 'tpu %s\\n' "$*"; }
gcloud() {
  printf '%s\\0' "$@" >>"$CALLS"; printf '\\n\\0' >>"$CALLS"
  [[ $3 != describe ]] || echo TERMINATED
}
sleep() { :; }
"""


def test_the_commands_of_a_snapshot_fill_a_disk_and_leave_the_snapshot_alone(
    root: Path, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tokens / "large.bin").open("wb") as file:
        file.truncate(20 << 30)  # sparse
    assert main(["data", "snapshot", "dev", "tokens", "--name", "my-data"], root) == 0
    script = capsys.readouterr().out
    line, recorded = ["bash", "-c", STAND_INS + script], root / "calls"
    subprocess.run(line, check=True, env={"PATH": "/usr/bin:/bin", "CALLS": str(recorded)})
    calls = [group.split("\0") for group in recorded.read_text().split("\0\n\0") if group]
    assert shlex.split(script.splitlines()[2]) == ["tpu", "data", "put", "dev", "tokens", "--to", "my-data"]
    assert [call[1:4] for call in calls] == [
        ["instances", "create", "my-data-maker"], ["instances", "describe", "my-data-maker"],
        ["snapshots", "create", "my-data"], ["instances", "delete", "my-data-maker"],
        ["disks", "delete", "my-data-maker-data"],
    ]  # fmt: skip
    create = dict(word.removeprefix("--").split("=", 1) for word in calls[0][4:] if "=" in word)
    assert "--no-address" in calls[0]
    assert create["subnet"] == "projects/my-project/regions/us-east5/subnetworks/tpu-training-us-east5"
    assert create["create-disk"].startswith("name=my-data-maker-data,device-name=data,size=23GB,")
    filling = create["metadata"].removeprefix("startup-script=")
    assert "," not in filling, "gcloud would split the script there"
    assert f"gcloud storage rsync --recursive gs://{BUCKET}/data/my-data /mnt\numount /mnt" in filling
    assert subprocess.run(["bash", "-n"], input=filling.encode(), check=False).returncode == 0
    assert script.endswith("#   data:snapshot: my-data\n#   data:sizeGib: 23\n")


def test_a_long_list_of_problems_is_cut(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(own_data.PublishError, match="and 10 more") as refused:
        own_data.gather([tmp_path])
    assert str(refused.value).count("is empty") == 20
