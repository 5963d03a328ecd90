"""The context of an image of the bundle, and the build that makes it."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.__main__ import main
from infra.errors import InfraError
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from infra.layers.tpu import startup
from infra.publish import image
from rehearsal.cloud.core.errors import ApiError
from rehearsal.cloud.door.discovery import match
from tests.infra.layers.queue.test_submission import IMAGE, settings

REPOSITORY = "us-east5-docker.pkg.dev/my-project/images/workload"


class Bucket:
    """A bundle of these files in a bucket."""

    def __init__(self, **more: bytes):
        files = {startup.IN_BUNDLE: startup.render().encode(), "uv": b"uv", "wheels/a-1.whl": b"a", **more}
        lines = sorted((path, hashlib.sha256(content).hexdigest()) for path, content in files.items())
        manifest = "".join(f"{sha256}  {path}\n" for path, sha256 in lines).encode()
        self.id = hashlib.sha256(manifest).hexdigest()
        self.objects = {f"bundles/blobs/{hashlib.sha256(file).hexdigest()}": file for file in files.values()}
        self.objects[f"bundles/manifests/{self.id}"] = manifest
        self.read_names: list[str] = []

    def read(self, name: str) -> bytes:
        self.read_names.append(name)
        return self.objects[name]


def write(folder: Path, bucket: Bucket) -> None:
    image.write(folder, bucket.id, bucket.read, IMAGE, REPOSITORY)


def tree(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime)
        for path in folder.rglob("*")
        if path.is_file() and folder / image.BUNDLE in path.parents
    }


def test_the_same_bundle_gives_the_same_context(tmp_path: Path) -> None:
    bucket, umask = Bucket(), os.umask(0o077)
    try:
        write(tmp_path / "one", bucket)
    finally:
        os.umask(umask)
    write(tmp_path / "two", bucket)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert {*tree(tmp_path / "one")} == {f"bundle/{name}" for name in (
        "manifest", startup.IN_BUNDLE, "uv", "wheels/a-1.whl")}  # fmt: skip
    for name in (image.DOCKERFILE, image.CLOUD_BUILD):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_only_what_changed_is_read_again_and_an_earlier_bundles_files_go(tmp_path: Path) -> None:
    write(tmp_path, Bucket(old=b"old"))
    newer = Bucket(new=b"new")
    write(tmp_path, newer)
    assert newer.read_names == [
        f"bundles/manifests/{newer.id}",
        f"bundles/blobs/{hashlib.sha256(b'new').hexdigest()}",
    ]
    assert not (tmp_path / image.BUNDLE / "old").exists()
    (tmp_path / image.BUNDLE / "uv").write_bytes(b"damaged")
    write(tmp_path, newer)
    assert (tmp_path / image.BUNDLE / "uv").read_bytes() == b"uv"


def test_what_is_not_the_bundle_is_refused(tmp_path: Path) -> None:
    bucket = Bucket()
    bucket.objects[f"bundles/blobs/{hashlib.sha256(b'a').hexdigest()}"] = b"b"
    with pytest.raises(InfraError, match=r"wheels/a-1\.whl in the bucket isn't what its name says"):
        write(tmp_path, bucket)
    with pytest.raises(InfraError, match="older than images of bundles"):
        write(tmp_path, Bucket(**{startup.IN_BUNDLE: b"#!/bin/bash"}))


def check(build: dict[str, Any]) -> None:
    """As the emulated cloud checks requests: against Google's description of the API."""
    result = match("cloudbuild.googleapis.com", "POST", "/v1/projects/my-project/locations/us-east5/builds")
    assert result is not None
    assert result.route is not None
    result.route.check_body(build)


def test_the_build_is_one_that_cloud_build_knows(tmp_path: Path) -> None:
    bucket = Bucket()
    write(tmp_path, bucket)
    build = yaml.safe_load((tmp_path / image.CLOUD_BUILD).read_text())
    check(build)
    check(image.cloud_build(REPOSITORY, bucket.id, "projects/p/serviceAccounts/b@p.iam.gserviceaccount.com"))
    for wrong in ({**build, "image": []}, {**build, "steps": [{"command": ["x"]}]}):
        with pytest.raises(ApiError):
            check(wrong)
    tag = f"{REPOSITORY}:{bucket.id[:12]}"
    assert build["images"] == [tag]
    assert (build["timeout"], build["options"]) == ("1800s", {"logging": "CLOUD_LOGGING_ONLY"})
    assert "serviceAccount" not in build, "Cloud Build's own"
    account = "projects/p/serviceAccounts/b@p.iam.gserviceaccount.com"
    assert image.cloud_build(REPOSITORY, bucket.id, account)["serviceAccount"] == account
    assert build["steps"][2]["args"] == [
        "-c", f"docker inspect --format='queue:image: {{{{index .RepoDigests 0}}}}' {tag}",
    ]  # fmt: skip
    assert all(tag in " ".join(step["args"]) for step in build["steps"])
    assert "--network=none" in build["steps"][0]["args"]
    assert "$" not in json.dumps(build), "Cloud Build would substitute it"


def test_the_dockerfile_begins_with_a_digest_and_ends_with_the_launcher(tmp_path: Path) -> None:
    bucket = Bucket()
    write(tmp_path, bucket)
    lines = (tmp_path / image.DOCKERFILE).read_text().splitlines()
    assert lines[0] == f"FROM {IMAGE}"
    assert lines[-1] == 'ENTRYPOINT ["workload", "launch", "--"]'
    assert f"--mount=type=bind,source=bundle,target=/opt/tpu/bundles/{bucket.id} " in lines[2]
    assert not any(line.startswith(("COPY", "ADD")) for line in lines), "the wheels stay out of the image"


def command(monkeypatch: pytest.MonkeyPatch, folder: Path, *more: str, **changes: Any) -> int:
    monkeypatch.setattr("cli.job.from_file", lambda _: settings(**changes))
    return main(["job", "image", "dev", "--out", str(folder), *more])


def test_the_command_writes_it_and_says_what_to_run_and_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = Bucket()
    monkeypatch.setattr("infra.publish.image.from_bucket", lambda *_: bucket.read)
    assert command(monkeypatch, tmp_path, **{"tpu:bundle": bucket.id}) == 0
    shown = capsys.readouterr().out
    assert (
        "gcloud artifacts repositories create images --repository-format=docker --location=us-east5" in shown
    )
    assert (
        f"gcloud builds submit {tmp_path} --config={tmp_path / 'cloudbuild.yaml'} --region=us-east5" in shown
    )
    assert "queue:install: image" in shown
    assert (tmp_path / image.DOCKERFILE).read_text().startswith(f"FROM {IMAGE}\n")


@pytest.mark.parametrize(("more", "changes", "message"), [
    (["--base", "us-docker.pkg.dev/p/debian:12"], {}, "an image with its digest"),
    ([], {"queue:image": None}, "an image with its digest"),
    ([], {"queue:install": "image"}, "an image with its digest"),  # queue:image isn't what it begins with
    (["--base", IMAGE], {"tpu:bundle": None, "queue:install": "image"}, "fix: tpu publish dev"),
    ([], {}, "the bundle isn't whole in the bucket"),
])  # fmt: skip
def test_what_cannot_be_written_is_one_message(
    more: list[str], changes: dict[str, Any], message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def send(*_: object) -> Any:
        raise RequestError(Failure(Kind.MISSING, "No such object"))

    monkeypatch.setattr("infra.google.client.Client.send", send)
    assert command(monkeypatch, tmp_path, *more, **changes) != 0
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert not list(tmp_path.iterdir())
