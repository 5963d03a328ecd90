"""`tpu builds`: which build is started on what, how it is followed, and what is refused before."""

import io
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import builds
from infra.errors import CommandError
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from infra.layers.builds import running
from infra.settings import rules
from tests.cli.call import call
from tests.infra.layers.builds.test_builds_layer import GIVEN
from tests.infra.recording import BASE

IMAGES, RUNS = ("builds:baseImage", "builds:dockerImage"), ("builds:image",)


class Google:
    """Cloud Build, Cloud Logging and the state's bucket, as far as a build of one step needs them."""

    def __init__(self, *states: str, **ended: Any):
        self.states, self.ended = list(states), ended
        self.requests: list[tuple[str, str, Any, Any]] = []
        self.objects: dict[str, bytes] = {}
        self.log: list[str] | RequestError = []

    def json(self, method: str, url: str, query: Any = None, body: Any = None) -> dict[str, Any]:
        self.requests.append((method, url, query, body))
        if url.endswith("/o"):
            return {"generation": "7"}
        if url.endswith("/entries:list"):
            if isinstance(self.log, RequestError):
                raise self.log
            return {"entries": [{"textPayload": line} for line in reversed(self.log)]}
        if method == "POST":
            return {"metadata": {"build": {"id": "b-1"}}}
        status = self.states.pop(0)
        return {"status": status, "steps": [{"id": "preview", "status": status}], **self.ended}

    def content(self, url: str) -> bytes | None:
        return self.objects.get(url.rpartition("/o/")[2])


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Google:
    item = Google("QUEUED", "WORKING", "WORKING", "SUCCESS")
    monkeypatch.setattr(builds, "Client", lambda project: item)
    monkeypatch.setattr(running, "_EVERY_S", 0)
    return item


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return checkout(tmp_path)


def checkout(folder: Path, lacking: Sequence[str] = ()) -> Path:
    values = {key: value for key, value in {**BASE, **GIVEN}.items() if key not in lacking}
    (folder / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": values}))
    return folder


def started(google: Google) -> dict[str, Any]:
    """The build that was asked for."""
    (body,) = [
        body for method, url, _, body in google.requests if method == "POST" and url.endswith("/builds")
    ]
    return dict(body)


def test_a_build_is_started_on_the_checkout_and_followed(
    google: Google, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(builds.builds, ["submit", "dev", "preview"], root) == 0
    assert capsys.readouterr().out.splitlines() == [
        "build b-1",
        "  preview: WORKING",
        "  preview: SUCCESS",
        "SUCCESS",
        "next: tpu builds submit dev provision --plan b-1",
    ]
    _, url, query, content = google.requests[0]
    assert url == "https://storage.googleapis.com/upload/storage/v1/b/my-project-pulumi/o"
    assert query["name"].startswith("sources/")
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert tar.getnames() == ["Pulumi.dev.yaml"]
    source = {"bucket": "my-project-pulumi", "object": query["name"], "generation": "7"}
    assert started(google)["source"] == {"storageSource": source}


@pytest.mark.parametrize("state", ["PENDING", "QUEUED", "WORKING", "STATUS_UNKNOWN"])
def test_a_build_is_followed_from_any_state_to_its_end(
    state: str, google: Google, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    google.states = [state, "SUCCESS"]
    assert call(builds.builds, ["submit", "dev", "preview"], root) == 0
    assert "SUCCESS" in capsys.readouterr().out.splitlines()


def test_a_plan_is_handed_to_the_build_that_applies(google: Google, root: Path) -> None:
    assert call(builds.builds, ["submit", "dev", "provision", "--plan", "p-9", "--detach"], root) == 0
    assert started(google)["substitutions"] == {"_PLAN": "p-9"}
    assert [method for method, *_ in google.requests] == ["POST", "POST"], "it isn't waited for"


def test_without_a_plan_the_build_makes_one(google: Google, root: Path) -> None:
    call(builds.builds, ["submit", "dev", "provision", "--detach", "--yes"], root)
    assert started(google)["substitutions"] == {"_PLAN": ""}


def test_a_plan_of_an_unset_variable_isnt_taken_for_none(google: Google, root: Path) -> None:
    with pytest.raises(
        CommandError, match=r"--plan names no preview\n    fix: --plan ID, as `tpu builds submit dev"
    ):
        call(builds.builds, ["submit", "dev", "provision", "--plan", "", "--yes"], root)
    assert google.requests == []


@pytest.mark.parametrize(("build", "question"), [
    ("provision", "Bring data, network, gke, tpu, queue of dev up without a preview"),
    ("destroy", "Take data, network, gke, tpu, queue of dev down"),
    ("cloudbuild/dev/destroy.yaml", "Take data, network, gke, tpu, queue of dev down"),
])  # fmt: skip
def test_nothing_is_changed_unseen_without_a_yes(
    build: str, question: str, google: Google, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    call(builds.builds, ["render", "dev"], root)
    with pytest.raises(CommandError, match=f"{question}.* There is no terminal to ask at\n    fix: --yes"):
        call(builds.builds, ["submit", "dev", build], root)
    assert google.requests == []


@pytest.mark.parametrize("ended", [{"failureInfo": {"detail": "step 1"}}, {"statusDetail": "step 1"}])
def test_a_build_that_failed_shows_its_log_and_why(
    ended: dict[str, Any], google: Google, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    google.states, google.ended, google.log = ["FAILURE"], ended, ["one", "two"]
    with pytest.raises(CommandError, match="the build b-1 ended as FAILURE: step 1\n    fix: see its log"):
        call(builds.builds, ["submit", "dev", "preview"], root)
    assert capsys.readouterr().err == "  | one\n  | two\n"
    (body,) = [body for _, url, _, body in google.requests if "logging" in url]
    assert body["filter"] == 'resource.type="build" AND resource.labels.build_id="b-1"'


def test_a_log_that_may_not_be_read_hides_no_failure(
    google: Google, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    google.states, google.log = ["TIMEOUT"], RequestError(Failure(Kind.PERMISSION, "no logging.viewer"))
    with pytest.raises(CommandError, match="ended as TIMEOUT"):
        call(builds.builds, ["submit", "dev", "preview"], root)
    assert "its log can't be read" in capsys.readouterr().err


@pytest.mark.parametrize(("line", "lacking", "message"), [
    (["submit", "dev", "preview", "--plan", "x"], (), "preview applies no plan\n    fix: --plan is for prov"),
    (["submit", "dev", "previw"], (), "no build previw\n    fix: one of image, preview, provision, destroy"),
    (["submit", "dev", "Pulumi.dev.yaml"], (), "no build Pulumi.dev.yaml"),
    (["submit", "dev", "image"], IMAGES, "needs builds:baseImage and builds:dockerImage\n    fix: write "),
    (["submit", "dev", "preview"], RUNS, "fix: tpu builds render dev, tpu builds submit dev image"),
    (["submit", "dev", "preview"], (*RUNS, *IMAGES), "fix: write builds:baseImage and builds:dockerImage"),
    (["render", "dev"], (*RUNS, *IMAGES), "no build can be rendered"),
    (["plan", "dev", "--from", "p-9", "--to", "plans"], (), "the build p-9 saved no plan of data"),
    (["submit", "dev", "image"], (), "cloudbuild/dev/Dockerfile is missing, or older"),
])  # fmt: skip
def test_what_cant_be_built_is_refused_with_the_next_command(
    line: list[str], lacking: tuple[str, ...], message: str, google: Google, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(checkout(tmp_path, lacking))
    with pytest.raises(CommandError) as refused:
        call(builds.builds, line, tmp_path)
    assert message in str(refused.value)
    assert google.requests == []


def test_the_image_is_built_of_what_was_rendered_from_these_settings(google: Google, root: Path) -> None:
    call(builds.builds, ["render", "dev"], root)
    folder = root / "cloudbuild/dev"
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        "Dockerfile", "image.yaml", "preview.yaml", "provision.yaml", "destroy.yaml",
        "queue/jobset.yaml", "queue/kueue.yaml", "queue/provisioningrequests.yaml",
    }  # fmt: skip
    call(builds.builds, ["submit", "dev", "image", "--detach"], root)
    assert "cloudbuild/dev/Dockerfile" in started(google)["steps"][0]["args"]
    with tarfile.open(fileobj=io.BytesIO(google.requests[0][3])) as tar:
        assert "cloudbuild/dev/queue/kueue.yaml" in tar.getnames(), "the build takes it along"
    for name in ("Dockerfile", "queue/kueue.yaml"):
        call(builds.builds, ["render", "dev"], root)
        (folder / name).write_text("another")
        refusal = f"{name} is missing, or older than the settings\n    fix: tpu builds render"
        with pytest.raises(CommandError, match=refusal):
            call(builds.builds, ["submit", "dev", "image"], root)
        (folder / name).unlink()
        with pytest.raises(CommandError, match=refusal):
            call(builds.builds, ["submit", "dev", "image"], root)


def test_the_image_that_was_built_is_printed_by_its_digest(
    google: Google, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, digest = "us-east5-docker.pkg.dev/my-project/tpu-builds/builder", f"sha256:{'1' * 64}"
    google.ended = {"results": {"images": [{"name": f"{path}:b-1", "digest": digest}]}}
    call(builds.builds, ["render", "dev"], root)
    assert call(builds.builds, ["submit", "dev", "image"], root) == 0
    assert capsys.readouterr().out.endswith(f"SUCCESS\nnext: write builds:image: {path}@{digest}\n")
    assert rules.DIGEST.ok(f"{path}@{digest}")


@pytest.mark.parametrize(("lacking", "first"), [((), "preview"), (RUNS, "image")])
def test_rendering_names_the_first_build_that_was_rendered(
    lacking: tuple[str, ...], first: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(builds.builds, ["render", "dev"], checkout(tmp_path, lacking))
    printed = capsys.readouterr()
    assert f"next: tpu builds submit dev {first}, or the gcloud command in {first}.yaml" in printed.out
    assert printed.err == ""


def test_a_folder_that_cant_be_written_is_named(root: Path) -> None:
    (root / "cloudbuild").write_text("")
    with pytest.raises(CommandError, match=r"cloudbuild/dev: Not a directory\n    fix: make it writable"):
        call(builds.builds, ["render", "dev"], root)


def test_a_folder_where_a_build_file_belongs_is_named(root: Path) -> None:
    (root / "cloudbuild/dev/preview.yaml").mkdir(parents=True)
    with pytest.raises(CommandError, match=r"cloudbuild/dev/preview\.yaml: Is a directory"):
        call(builds.builds, ["render", "dev"], root)


def test_a_rendered_file_is_started_as_it_is(google: Google, root: Path) -> None:
    call(builds.builds, ["render", "dev"], root)
    path = root / "cloudbuild/dev/destroy.yaml"
    call(builds.builds, ["submit", "dev", str(path), "--detach", "--yes"], root)
    build = started(google)
    del build["source"]
    assert build == yaml.safe_load(path.read_text())


def test_the_plans_of_a_preview_are_fetched(google: Google, root: Path) -> None:
    layers = ("network", "data", "gke", "queue", "tpu")
    google.objects = {f"plans%2Fp-9%2F{layer}.json": layer.encode() for layer in layers}
    assert call(builds.builds, ["plan", "dev", "--from", "p-9", "--to", str(root / "plans")], root) == 0
    mapping = {path.name: path.read_text() for path in (root / "plans").iterdir()}
    assert mapping == {f"{layer}.json": layer for layer in layers}


def test_a_checkout_is_packed_the_same_each_time_and_without_what_git_ignores(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a")
    (tmp_path / ".hidden").write_text("b")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("c")

    def names() -> list[str]:
        with tarfile.open(fileobj=io.BytesIO(running.archive(tmp_path))) as tar:
            assert {(item.uid, item.mtime, item.uname) for item in tar} == {(0, 0, "root")}
            return tar.getnames()

    assert names() == ["a.py"]
    assert running.archive(tmp_path) == running.archive(tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("__pycache__\n")
    assert names() == [".gitignore", ".hidden", "a.py"]
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    (tmp_path / "a.py").unlink()
    assert names() == [".gitignore", ".hidden"], "git lists what is deleted until that is committed"
