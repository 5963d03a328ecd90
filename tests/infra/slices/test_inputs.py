"""Folders that a run reads from buckets: what isn't there is refused before a slice is paid for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cli.__main__ import main
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from infra.slices import inputs
from infra.slices.nodes import nodes
from tests.infra.conftest import FakePulumi
from tests.infra.engine.test_plan import event
from tests.infra.recording import BASE, parsed

BUCKET = "gs://my-project-checkpoints"
RUN = f"train tiny.toml --set data.path={BUCKET}/data/chats --set observe.eval_path={BUCKET}/data/held-out"
OWN = f"""
[data]
path = "."
sources = [{{path = "{BUCKET}/data/chats", weight = 3}}, {{path = "{BUCKET}/data/text", weight = 1}}]
[observe]
eval_path = "{BUCKET}/data/held-out"
"""


class Google:
    """A bucket with folders, or a refusal."""

    def __init__(self, *folders: str, refusal: Kind | None = None):
        self.folders, self.refusal = folders, refusal

    def json(self, _: str, url: str, query: Mapping[str, str]) -> dict[str, Any]:
        assert url.endswith("/b/my-project-checkpoints/o")
        if self.refusal:
            raise RequestError(Failure(self.refusal, "no"))
        return {"items": [{"name": "x"}]} if query["prefix"] in self.folders else {}


def problems(google: Google, run: str = RUN, folder: Path = Path()) -> list[str]:
    missing = inputs.missing(google, "dev", inputs.Run("its", run), folder)  # type: ignore[arg-type]
    return [problem.value for problem in missing]


def test_a_folder_without_an_object_is_named_and_what_is_not_known_is_none() -> None:
    assert problems(Google("data/chats/", "data/held-out/")) == []
    assert problems(Google("data/chats/")) == [f"observe.eval_path {BUCKET}/data/held-out"]
    assert len(problems(Google())) == 2
    for kind in (Kind.MISSING, Kind.PERMISSION, Kind.LOGIN):  # as before the bucket is up
        assert problems(Google(refusal=kind)) == []
    assert problems(Google(), "python3 train.py") == []
    assert problems(Google(), "train tiny.toml --set train.init_from=run:gs://b/runs/a@4") == []


def test_a_config_of_the_users_is_read_and_the_line_counts_more(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(OWN)
    assert problems(Google("data/chats/"), "train mine.toml", tmp_path) == [
        f"observe.eval_path {BUCKET}/data/held-out", f"data.sources[1].path {BUCKET}/data/text",
    ]  # fmt: skip
    line = f"train mine.toml --set observe.eval_path={BUCKET}/data/chats"
    assert problems(Google("data/chats/", "data/text/"), line, tmp_path) == []
    (tmp_path / "mine.toml").write_text("data = 3")
    assert problems(Google(), "train mine.toml", tmp_path) == [], "the trainer names it"


def test_weights_and_streams_of_an_extraction_are_looked_for() -> None:
    run = f"extract qwen2.5-0.5b.toml --stream {BUCKET}/streams --set model.weights={BUCKET}/data/chats"
    assert problems(Google("data/chats/", "streams/"), run) == []
    assert problems(Google(), run) == [
        f"model.weights {BUCKET}/data/chats", f"--stream {BUCKET}/streams",
    ]  # fmt: skip
    of_one = f"extract qwen2.5-0.5b.toml --stream {BUCKET}/streams/stream_000.safetensors"
    assert problems(Google("streams/stream_000.safetensors"), of_one) == []


def test_a_fleet_alone_is_offered_the_command_that_makes_its_streams() -> None:
    line = f"extract qwen2.5-0.5b.toml --stream {BUCKET}/streams"
    slices = [
        {"name": name, "acceleratorType": "v6e-8", "zones": ["us-east5-b"], "run": line, **more}
        for name, more in (("own", {}), ("many", {"count": 2}))
    ]
    runs = inputs.of(nodes(parsed({**BASE, "tpu:slices": slices})))
    fixes = {
        run.setting: problem.fix
        for run in runs
        for problem in inputs.missing(Google(), "dev", run, Path())  # type: ignore[arg-type]
    }
    made = f"tpu workload data streams --source … --out {BUCKET}/streams"
    listing = "; gcloud storage ls lists what is there"
    assert fixes == {
        "tpu:slices, own": made + listing,
        "tpu:slices, many": f"{made}; or tpu fleet deploy dev --slice many{listing}",
    }


def test_a_folder_that_the_run_replaces_is_not_read_and_that_of_a_base_is(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(f'[train]\ninit_from = "{BUCKET}/weights"\n{OWN}')
    (tmp_path / "mine.toml").write_text('base = "base.toml"\n[data]\nsources = []\n')
    assert problems(Google("data/held-out/"), "train mine.toml", tmp_path) == [
        f"train.init_from {BUCKET}/weights"
    ]
    line = "train base.toml --set train.init_from=run:first@400 --set data.sources=[]"
    assert problems(Google("data/held-out/"), line, tmp_path) == []
    assert problems(Google(), "train mine.toml") == [], "the file isn't here"


@pytest.mark.parametrize(("operation", "status"), [("create", 2), ("replace", 2), ("update", 0)])
def test_a_plan_is_refused_with_what_uploads_it(
    operation: str,
    status: int,
    pulumi_cli: FakePulumi,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Before the slice is made: one that is there has read it, or is done."""
    pulumi_cli.answer("stack ls", [])
    pulumi_cli.log(event(operation, "urn:pulumi:dev::tpu-v6e::gcp:tpu/v2Vm:V2Vm::tpu-dev"))
    monkeypatch.setattr("infra.slices.preflight.verdict_on", lambda *_: None)
    monkeypatch.setattr("infra.engine.plan.Client", lambda _: Google("data/chats/"))
    read = inputs.Run("tpu:slices, train", RUN)
    monkeypatch.setattr(inputs, "of", lambda created: [read] if [*created] else [])
    assert main(["plan", "dev"]) == status
    error = capfd.readouterr().err
    problem = f"tpu:slices, train = observe.eval_path {BUCKET}/data/held-out: nothing is there"
    assert (problem in error) == (status == 2)
    assert ("fix: tpu data put dev FOLDER uploads it" in error) == (status == 2)
