"""Folders of settings: below $DATA_DIR, or in the mounted bucket; a URL elsewhere is refused by its key."""

import re
from pathlib import Path

import pytest

from workload import folders
from workload.__main__ import main
from workload.errors import ConfigError
from workload.extract.weights import find
from workload.train import config as training
from workload.train.base import Folder
from workload.train.loop import open_dataset, open_held_out

URL = "gs://my-checkpoints/data/mine"


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The mount of the bucket my-checkpoints, as on a host."""
    monkeypatch.setattr(folders, "MOUNT", tmp_path)
    monkeypatch.setenv("CHECKPOINT_BUCKET", "my-checkpoints")
    return tmp_path


@pytest.mark.parametrize(("name", "data_dir", "folder"), [
    ("tokens", "/mnt/data", "/mnt/data/tokens"), ("/tokens", "/mnt/data", "/tokens"),
    ("tokens", "", "tokens"), (".", "/mnt/data", "/mnt/data"),
])  # fmt: skip
def test_a_path_is_below_the_data_folder(
    name: str, data_dir: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folders.of_setting("data.path", name, data_dir) == Path(folder)
    monkeypatch.setenv("DATA_DIR", data_dir)
    assert folders.of_setting("data.path", name) == Path(folder)
    assert training.load("tiny.toml", [f"train.init_from={name}"]).weights == Path(folder)


@pytest.mark.parametrize(("name", "data_dir"), [(URL, "/mnt/data"), (URL, ""), ("mine", URL[:-5])])
def test_a_url_of_the_mounted_bucket_is_its_folder(
    name: str, data_dir: str, mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_DIR", data_dir)
    assert folders.of_setting("data.path", name) == mount / "data/mine"
    assert find(name, None) == Folder(mount / "data/mine")


@pytest.mark.parametrize(("bucket", "rule"), [
    ("my-checkpoints", "in gs://my-checkpoints, the bucket"), ("", "in the bucket that is mounted at"),
])  # fmt: skip
def test_a_url_that_is_mounted_nowhere_is_refused_by_its_key(
    bucket: str, rule: str, mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINT_BUCKET", bucket)
    url = "gs://others/tokens"
    keys = ("data.path", "observe.eval_path", "train.init_from")
    config = training.load("tiny.toml", [f"{key}={url}" for key in keys])
    for key, opened in {
        "data.path": lambda: open_dataset(config, None),
        "observe.eval_path": lambda: open_held_out(config, None),
        "train.init_from": lambda: config.weights,
        "model.weights": lambda: find(url, None),
        "$DATA_DIR": lambda: folders.of_setting("data.path", "mine", url),
    }.items():
        expected = f"{key} = {url}: must be {rule}"
        with pytest.raises(ConfigError, match=f"(?s){re.escape(expected)}.*fix: gcloud storage cp -r {url} "):
            opened()


def test_another_scheme_is_no_folder_of_that_name() -> None:
    with pytest.raises(ConfigError, match=r"data\.path = gs:/bucket/tokens: gs:/ isn't supported"):
        folders.of_setting("data.path", "gs:/bucket/tokens")


@pytest.mark.parametrize("line", [
    "data prepare --source . --out {url}",
    "data prepare --source {url} --out tokens",
    "data prepare --source . --tokenizer {url} --out tokens",
    "data streams --source {url} --out streams",
    "checkpoints export runs/tiny --out {url}",
    "preflight tiny.toml --slice v6e-8 --html {url}",
])  # fmt: skip
def test_an_option_that_takes_no_url_refuses_it_by_name(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    option = re.findall(r"(--\w+) {url}", line)[0]
    with pytest.raises(SystemExit) as end:
        main(line.format(url=URL).split())
    assert end.value.code == 2
    assert f"argument {option}: {URL}: must be a path of this machine\n    fix: " in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
