"""`tpu builds`: the build that is started, how it is followed, and refusals before it."""

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import builds
from infra.errors import CommandError
from infra.google.client import NO_QUERY, Client, Query, RequestError
from infra.google.failures import Failure, Kind
from infra.layers.builds import running
from tests.cli.call import call
from tests.infra.layers.builds.test_builds_layer import GIVEN
from tests.infra.recording import BASE

LAYERS = ("data", "network", "gke", "tpu", "queue")


class Google(Client):
    """Cloud Build, Cloud Logging and the state's bucket, as far as a build of one step needs them."""

    def __init__(self) -> None:
        super().__init__("my-project", sleep=lambda _: None)
        self.states, self.ended = ["QUEUED", "WORKING", "WORKING", "SUCCESS"], {}
        self.requests: list[tuple[str, str, Any, Any]] = []
        self.log: list[str] | RequestError = []
        self.known: list[dict[str, str]] = []

    def json(
        self, method: str, url: str, query: Query = NO_QUERY, body: Any = None, tries: int = 3
    ) -> dict[str, Any]:
        if method == "GET" and url.endswith("/builds"):
            assert query["filter"] == 'tags="tpu" AND tags="dev"'
            return {"builds": self.known}
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
        return {"status": status, "steps": [{"id": "plan", "status": status}], **self.ended}

    def started(self) -> dict[str, Any]:
        """The body of the request for a build."""
        (body,) = [body for _, url, _, body in self.requests if url.endswith("/builds")]
        return dict(body)

    def uploaded(self) -> dict[str, bytes]:
        """Files of the uploaded checkout, by name."""
        with tarfile.open(fileobj=io.BytesIO(self.requests[0][3])) as tar:
            return {entry.name: tar.extractfile(entry).read() for entry in tar if entry.isfile()}  # type: ignore[union-attr]


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Google:
    item = Google()
    monkeypatch.setattr(builds, "Client", lambda project: item)
    monkeypatch.setattr(running, "_EVERY_S", 0)
    return item


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": {**BASE, **GIVEN}}))
    return tmp_path


def submit(root: Path, *words: str) -> int:
    return call(builds.builds, ["submit", "dev", *words], root)


def test_a_build_is_started_on_the_checkout_and_followed(
    google: Google, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(root, "provision", "--yes") == 0
    assert capsys.readouterr().out.splitlines() == [
        "build b-1", "  plan: WORKING", "  plan: SUCCESS", "SUCCESS",
    ]  # fmt: skip
    _, url, query, _ = google.requests[0]
    assert url == "https://storage.googleapis.com/upload/storage/v1/b/my-project-pulumi/o"
    assert query["name"].startswith("sources/")
    files = google.uploaded()
    assert {"Pulumi.dev.yaml", "cloudbuild/dev/queue/kueue.yaml"} < set(files)
    build = google.started()
    source = {"bucket": "my-project-pulumi", "object": query["name"], "generation": "7"}
    assert build.pop("source") == {"storageSource": source}
    assert query["name"] == f"sources/{build['tags'].pop()}.tgz", "by which a lost answer's build is found"
    assert build == yaml.safe_load(files["cloudbuild/dev/provision.yaml"]), "as gcloud would start it"


def test_while_a_build_of_the_environment_runs_no_other_is_started(google: Google, root: Path) -> None:
    """As after a command that was killed before it printed the build's id."""
    google.known = [{"id": "b-0", "status": "SUCCESS"}, {"id": "b-1", "status": "WORKING"}]
    with pytest.raises(
        CommandError, match="a build of dev is WORKING already: b-1\n    fix: gcloud builds log"
    ):
        submit(root, "destroy", "--yes")
    assert google.requests == []


@pytest.mark.parametrize("state", ["PENDING", "QUEUED", "WORKING", "STATUS_UNKNOWN"])
def test_a_build_is_followed_from_any_state_to_its_end(state: str, google: Google, root: Path) -> None:
    google.states = [state, "SUCCESS"]
    assert submit(root, "destroy", "--yes") == 0
    assert google.states == []


def test_saved_plans_go_along_and_no_others_are_made(google: Google, root: Path, tmp_path: Path) -> None:
    plans = tmp_path / "elsewhere" / "mine"
    plans.mkdir(parents=True)
    for layer in LAYERS:
        (plans / f"{layer}.json").write_text(layer)
    assert submit(root, "provision", "--plan", str(plans), "--detach") == 0
    assert google.uploaded()["plans/gke.json"] == b"gke"
    steps = google.started()["steps"]
    assert [step["id"] for step in steps] == [f"apply-{layer}" for layer in LAYERS]
    assert "--plan plans" in " ".join(steps[0]["args"])
    assert [method for method, *_ in google.requests] == ["POST", "POST"], "it isn't waited for"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["provision"], f"Bring {', '.join(LAYERS)} of dev up without a preview .*\n    fix: --yes"),
        (["destroy"], f"Take {', '.join(LAYERS)} of dev down.*\n    fix: --yes"),
        (["destroy", "--plan", "x", "--yes"], "destroy applies no plan\n    fix: --plan is for provision"),
        (
            ["provision", "--plan", "none", "--yes"],
            f"none has no plan of {', '.join(LAYERS)}\n    fix: tpu plan dev {' '.join(LAYERS)} --save none",
        ),
        (["provision", "--plan", "", "--yes"], "has no plan of data"),
    ],
)
def test_nothing_is_changed_unseen(words: list[str], message: str, google: Google, root: Path) -> None:
    with pytest.raises(CommandError, match=message):
        submit(root, *words)
    assert google.requests == []


@pytest.mark.parametrize("ended", [{"failureInfo": {"detail": "step 1"}}, {"statusDetail": "step 1"}])
def test_a_build_that_failed_shows_its_log_and_why(
    ended: dict[str, Any], google: Google, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    google.states, google.ended, google.log = ["FAILURE"], ended, ["one", "two"]
    with pytest.raises(CommandError, match="the build b-1 ended as FAILURE: step 1\n    fix: see its log"):
        submit(root, "provision", "--yes")
    assert capsys.readouterr().err == "  | one\n  | two\n"
    (body,) = [body for _, url, _, body in google.requests if "logging" in url]
    assert body["filter"] == 'resource.type="build" AND resource.labels.build_id="b-1"'


def test_a_log_that_may_not_be_read_hides_no_failure(
    google: Google, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    google.states, google.log = ["TIMEOUT"], RequestError(Failure(Kind.PERMISSION, "no logging.viewer"))
    with pytest.raises(CommandError, match="ended as TIMEOUT"):
        submit(root, "provision", "--yes")
    assert "its log can't be read" in capsys.readouterr().err


def test_rendering_lists_its_files(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(builds.builds, ["render", "dev"], root) == 0
    folder = root / "cloudbuild/dev"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == {
        "provision.yaml", "destroy.yaml",
        "queue/jobset.yaml", "queue/kueue.yaml", "queue/provisioningrequests.yaml",
    }  # fmt: skip
    *printed, _, after = capsys.readouterr().out.splitlines()
    assert {f"cloudbuild/dev/{name}" for name in files} == set(printed)
    assert after == "next: tpu builds submit dev provision, or the gcloud command in provision.yaml"


@pytest.mark.parametrize(("path", "message"), [
    ("cloudbuild", r"cloudbuild/dev.*: Not a directory\n    fix: make it writable"),
    ("cloudbuild/dev/destroy.yaml/x", r"cloudbuild/dev/destroy\.yaml: Is a directory"),
])  # fmt: skip
def test_a_place_that_cant_be_written_is_named(path: str, message: str, root: Path) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text("")
    with pytest.raises(CommandError, match=message):
        call(builds.builds, ["render", "dev"], root)


def test_a_checkout_is_packed_without_what_git_ignores(tmp_path: Path) -> None:
    for name in ("a.py", ".hidden", "__pycache__/a.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a")

    def names() -> list[str]:
        with tarfile.open(fileobj=io.BytesIO(running.archive(tmp_path))) as tar:
            return tar.getnames()

    assert names() == ["a.py"]
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("__pycache__\n")
    assert names() == [".gitignore", ".hidden", "a.py"]
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    (tmp_path / "a.py").unlink()
    assert names() == [".gitignore", ".hidden"], "git lists what is deleted until that is committed"
