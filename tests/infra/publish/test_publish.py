"""The command, against a storage server."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from google.cloud import storage
from rich.console import Console

from cli.__main__ import main
from infra.layers.tpu import startup
from infra.publish import publishing
from infra.publish.bundle import Bundle, assemble
from infra.publish.environment import Target
from infra.publish.errors import PublishError
from infra.publish.publishing import publish
from infra.publish.upload import upload


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    for name in ("a", "b", "same"):
        (tmp_path / name).write_bytes(
            b"a" if name == "same" else name.encode() * (1 if name == "a" else 3_000_000)
        )
    return assemble({name: tmp_path / name for name in ("a", "b", "same")})


def ignore(done: int, total: int) -> None:
    pass


def names(bucket: storage.Bucket) -> set[str]:
    return {blob.name for blob in bucket.list_blobs()}


def test_publishing_twice_uploads_once(bucket: storage.Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    reports = []
    for _ in range(2):
        assert main(["publish", "x", "--lock", "bare", "--bucket", bucket.name, "--json"]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    first, second = reports
    assert first["bundle"] == second["bundle"]
    assert (first["uploaded"], second["uploaded"]) == (first["files"], 0)
    manifest = bucket.blob(f"bundles/manifests/{first['bundle']}").download_as_bytes()
    assert hashlib.sha256(manifest).hexdigest() == first["bundle"]
    lines = dict(reversed(line.split("  ")) for line in manifest.decode().splitlines())
    assert {"gcsfuse", "python.tar.gz", "requirements.txt", "uv"} < set(lines)
    assert lines[startup.IN_BUNDLE] == startup.script_sha256(), "what an update asks the bucket for"
    assert [path for path in lines if path.startswith("wheels/tpu_workload-")]
    for sha256 in lines.values():
        content = bucket.blob(f"bundles/blobs/{sha256}").download_as_bytes()
        assert hashlib.sha256(content).hexdigest() == sha256


def test_programs_that_no_host_can_run_are_not_published(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert main(["publish", "x", "--lock", "bare", "--bucket", "none"]) == 1
    assert "this machine is linux/aarch64, a TPU host linux/x86_64" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "words", "lock"),
    [
        (None, [], "tpu"),
        ("", [], "tpu"),
        ("bare", [], "bare"),
        ("tpu", ["--lock", "bare"], "bare"),
        ("cpu", ["--json"], "cpu"),
    ],
)
def test_the_environment_says_which_lock_where_the_command_line_doesnt(
    environment: str | None, words: list[str], lock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TPU_LOCK", raising=False)
    if environment is not None:
        monkeypatch.setenv("TPU_LOCK", environment)
    published: list[str] = []
    monkeypatch.setattr(
        "infra.publish.publishing.publish_environment", lambda *given, **_: published.append(given[2]) or {}
    )
    assert main(["publish", "x", *words]) == 0
    assert published == [lock]


def test_a_lock_that_the_environment_makes_up_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TPU_LOCK", "gpu")
    assert main(["publish", "x", "--bucket", "none"]) == 2
    assert "'gpu' is not one of 'tpu', 'cpu', 'bare'" in capsys.readouterr().err


def test_the_same_content_is_uploaded_once_and_with_progress(bucket: storage.Bucket, bundle: Bundle) -> None:
    seen: list[tuple[int, int]] = []
    result = upload(bundle, bucket.name, lambda done, total: seen.append((done, total)))
    assert (result.uploaded, result.already_there) == (2, 0)
    assert seen[0] == (0, 3_000_001)
    assert seen[-1] == (3_000_001, 3_000_001)
    blobs = {f"bundles/blobs/{file.sha256}" for file in bundle.files}
    assert names(bucket) == blobs | {f"bundles/manifests/{bundle.id}"}


def test_an_interrupted_upload_leaves_no_manifest_and_goes_on(bucket: storage.Bucket, bundle: Bundle) -> None:
    class StoppedError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done:
            raise StoppedError

    with pytest.raises(StoppedError):
        upload(bundle, bucket.name, stop)
    assert not [name for name in names(bucket) if name.startswith("bundles/manifests/")]
    result = upload(bundle, bucket.name, ignore)
    assert result.already_there >= 1
    assert f"bundles/manifests/{bundle.id}" in names(bucket)


def test_nothing_is_overwritten(bucket: storage.Bucket, bundle: Bundle) -> None:
    sha256 = bundle.files[0].sha256
    bucket.blob(f"bundles/blobs/{sha256}").upload_from_string(b"something else")
    with pytest.raises(PublishError, match=r"has 14 bytes, (a|same) has 1: someone overwrote it"):
        upload(bundle, bucket.name, ignore)
    assert bucket.blob(f"bundles/blobs/{sha256}").download_as_bytes() == b"something else"


def test_a_missing_bucket_names_the_layer_to_bring_up(bucket: storage.Bucket, bundle: Bundle) -> None:
    with pytest.raises(PublishError, match="bring up the storage layer first"):
        upload(bundle, "no-such-bucket", ignore)
    assert names(bucket) == set()


def test_nothing_is_built_for_a_bucket_that_is_not_there(
    bucket: storage.Bucket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("infra.publish.publishing._build", lambda *_: pytest.fail("a bundle was built"))
    assert main(["publish", "x", "--lock", "bare", "--bucket", "no-such-bucket"]) == 1
    assert "bring up the storage layer first: tpu up ENV storage" in capsys.readouterr().err


def test_a_bundle_that_is_not_accepted_is_not_uploaded(bucket: storage.Bucket) -> None:
    seen: list[str] = []

    def refuse(bundle: str) -> None:
        seen.append(bundle)
        raise PublishError("another program's")

    target = Target(bucket.name, False, None, None, {})
    with pytest.raises(PublishError, match=r"another program's$"):
        publish(target, "bare", Console(stderr=True), "again", accept=refuse)
    assert re.fullmatch("[0-9a-f]{64}", *seen)
    assert names(bucket) == set()


def test_a_dry_run_touches_nothing(bucket: storage.Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", "x", "--lock", "bare", "--bucket", bucket.name, "--json", "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["uploaded"] == 0
    assert names(bucket) == set()


def test_an_unknown_environment_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(publishing, "ROOT", tmp_path)
    assert main(["publish", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("error: Pulumi.nowhere.yaml does not exist")
