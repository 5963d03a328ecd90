"""The commands of the guides and of docs/reference/queue.md, executed as printed, in this process."""

import re
import shlex
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from cli.__main__ import main as tpu
from infra.engine.before import settings_to_apply
from infra.engine.registry import section_classes
from infra.engine.settings import from_file
from infra.errors import SettingsError
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings, keys_of
from infra.settings.sources import environments
from rehearsal.scenario.guides import commands
from tests.infra.layers.queue.test_submission import settings
from tests.rehearsal.cloud.storage.storage_front import PROJECT, Front
from tools.blocks import ROOT
from workload import folders
from workload.__main__ import main as workload
from workload.data.tokens import Dataset
from workload.runs.store import FolderStore, open_store

PROGRAMS = {"tpu": tpu, "workload": workload}
HEREDOC = re.compile(r"^python - <<'END'\n(.*?)^END\n", re.DOTALL | re.MULTILINE)


class Guide:
    """A page whose commands are executed below a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch

    def run(self, page: str) -> None:
        text = "".join(commands(ROOT / page).values()).replace("/tmp/guide", str(self.folder))
        pieces = HEREDOC.split(text)
        for shell, python in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
            for line in re.split(r"(?<=\n)(?=workload |tpu |export |cat |cd )", shell):
                self.line(line)
            exec(python, {})

    def line(self, line: str) -> None:
        """Execute a line, with those that need a shell behind it."""
        program, *words = shlex.split(line) or [""]
        if program == "export":
            self.monkeypatch.setenv(*words[0].split("=", 1))
        elif program in PROGRAMS and "&" not in words:
            assert PROGRAMS[program](words) == 0, line
        else:
            subprocess.run(["bash", "-ec", line], cwd=ROOT, check=True)


@pytest.fixture
def guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guide:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("PATH", str(ROOT / ".venv" / "bin"), prepend=":")
    monkeypatch.delenv("DATA_DIR", raising=False)
    # Goodput counts from the process's start, and this process has run other commands before.
    monkeypatch.setattr("workload.train.launch._process_age_s", lambda: 0.0)
    return Guide(tmp_path, monkeypatch)


@pytest.mark.slow
def test_the_training_guide_trains_is_killed_resumes_and_exports(
    guide: Guide, capfd: pytest.CaptureFixture[str]
) -> None:
    guide.run("docs/guides/training.md")
    output = capfd.readouterr().out
    assert "tiny.toml on v6e-16: FITS" in output
    assert re.search(r"^ +60  complete$", output, re.MULTILINE)
    assert re.search(r"60 steps in [2-9] starts", output), "it was killed on the way"
    assert "right, as the run ended" in output
    assert (guide.folder / "hf" / "config.json").is_file()


def test_the_data_guide_uploads_tokens_that_a_host_reads(
    guide: Guide, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    front, bucket = Front(guide.folder / "cloud"), from_file("dev")[StorageSettings].bucket_name
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", front.url)
    storage.Client(project=PROJECT, credentials=AnonymousCredentials()).create_bucket(bucket)
    guide.run("docs/guides/data.md")
    output = capfd.readouterr().out
    assert "\ntpu data put dev Qwen2.5-0.5B --skip-hidden\n" in output
    assert "\n#   data:snapshot: licenses\n" in output
    (url,) = re.findall(r"^  train tiny.toml --set data.path=(gs://.*)$", output, re.MULTILINE)
    stored = open_store(url)
    for name in stored.list(""):
        FolderStore(guide.folder / "mnt" / url.removeprefix(f"gs://{bucket}/")).write(name, stored.read(name))
    front.close()
    monkeypatch.setattr(folders, "MOUNT", guide.folder / "mnt")
    monkeypatch.setenv("CHECKPOINT_BUCKET", bucket)
    assert len(Dataset(folders.of_setting("data.path", url), 128)) > 100


@pytest.mark.slow
def test_the_flax_guide_trains_a_module_verifies_and_exports(
    guide: Guide, capfd: pytest.CaptureFixture[str]
) -> None:
    guide.run("docs/guides/flax.md")
    output = capfd.readouterr().out
    assert "step 20/20" in output
    assert "right, as the run ended" in output
    assert (guide.folder / "arrays" / "model.safetensors").is_file()


@pytest.mark.slow
def test_the_activations_guide_extracts_verifies_and_reads(
    guide: Guide, capfd: pytest.CaptureFixture[str]
) -> None:
    guide.run("docs/guides/activations.md")
    output = capfd.readouterr().out
    assert "extractions/first: 1 shard, 3 documents, 0 problems\n" in output
    assert re.search(r"^tree: sample 0, 15 tokens\n  resid_post.0 +15x64 ", output, re.MULTILINE)
    assert re.search(r"^river 16 \{'resid_post\.0': \(16, 64\), ", output, re.MULTILINE)


def test_the_environments_of_the_guide_share_no_name_and_a_copy_is_refused_as_printed(
    tmp_path: Path,
) -> None:
    """Beside the clone's own files."""
    page = ROOT / "docs/guides/environments.md"
    sections, example = commands(page), "examples/two-environments"
    shutil.copytree(ROOT / example, tmp_path / example)
    subprocess.run(["bash", "-ec", sections["1. Write the files"]], cwd=tmp_path, check=True)
    assert environments(tmp_path) == ["eu", "us"]
    shutil.copy(ROOT / "Pulumi.dev.yaml", tmp_path)
    for environment in environments(tmp_path):
        settings_to_apply(environment, tmp_path)
    assert {line.split()[2] for line in sections["2. Plan and bring up"].splitlines()} == {"eu", "us"}
    shutil.copy(tmp_path / "Pulumi.eu.yaml", tmp_path / "Pulumi.asia.yaml")
    with pytest.raises(SettingsError) as refused:
        settings_to_apply("asia", tmp_path)
    assert textwrap.indent(str(refused.value), "    ") in page.read_text(encoding="utf-8")


def test_the_guides_table_of_names_is_that_of_the_settings() -> None:
    text = (ROOT / "docs/guides/environments.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+):(\w+)` \| `(.*)` \| `(.*)` \|$", text, re.MULTILINE)
    declared = {
        (name, key, item.default, f"{item.default}-eu")
        for name, kind in section_classes().items()
        for key, item in keys_of(kind).items()
        if item.metadata["per_environment"]
    }
    assert declared == {*rows} - {("slurm", "name", "slurm-dev", "slurm-eu")}


def configured() -> Settings:
    """The blocks of settings of docs/reference/queue.md, those of TensorBoard too, with digests."""
    text = (ROOT / "docs/reference/queue.md").read_text(encoding="utf-8").replace("DIGEST", "0" * 64)
    merged: dict[str, Any] = {}
    blocks = re.findall(r"^    config:\n((?:      .*\n)+)", text, re.MULTILINE)
    assert len(blocks) == 2
    for block in blocks:
        merged |= yaml.safe_load(block)
    return settings(**merged)


def examples(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Files that the commands of the page's examples write, by name."""
    monkeypatch.chdir(folder)
    for line in commands(ROOT / "docs/reference/queue.md")["Examples"].splitlines():
        monkeypatch.setattr("cli.job.from_file", lambda _: configured())
        assert tpu(shlex.split(line)[1:]) == 0
    return {path.name: yaml.safe_load(path.read_text()) for path in folder.glob("*.yaml")}


def test_the_examples_of_jobs_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = {name: manifest["spec"] for name, manifest in examples(tmp_path, monkeypatch).items()}
    assert {name: [job["replicas"] for job in spec["replicatedJobs"]] for name, spec in jobs.items()} == {
        "single-slice.yaml": [1], "multi-slice.yaml": [2], "extraction.yaml": [2],
    }  # fmt: skip
    pod = jobs["extraction.yaml"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"][-7:-3] == ["workload", "extract", "qwen2.5-0.5b.toml", "--stream"]
    assert (tmp_path / "single-slice.yaml").read_text().startswith(
        "# gcloud container clusters get-credentials tpu --location us-east5 --project my-project"
        " --dns-endpoint\n# kubectl apply --server-side -f single-slice.yaml\n"
    )  # fmt: skip
