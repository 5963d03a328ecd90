"""Documents of every kind, a tokenizer, and the run that they make in memory."""

from pathlib import Path

import pytest

from tests.workload.preprocess import corpus, in_memory
from tests.workload.preprocess.starting import run_folder


@pytest.fixture(autouse=True)
def _tokenizers_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # as a task sets it


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus.tokenizer(tmp_path_factory.mktemp("tokenizer") / "bpe")


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, corpus.Expected]:
    folder = tmp_path_factory.mktemp("source") / "raw"
    return folder, corpus.mixed(folder)


@pytest.fixture(scope="session")
def source(mixed: tuple[Path, corpus.Expected]) -> Path:
    return mixed[0]


@pytest.fixture(scope="session")
def reference(source: Path, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reference") / "tokens"
    assert in_memory.run(out, source, in_memory.Context(1), tokenizer__name=tokenizer).made == 5
    return run_folder(out)
