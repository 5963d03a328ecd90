"""The clients that the workload and its tools use, unmodified, against the service."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from gcsfs.core import GCSFileSystem
from google.api_core.exceptions import Conflict, NotFound, PreconditionFailed
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from storage_front import PROJECT, Front

from tests.limits import HANG_S

pytestmark = pytest.mark.usefixtures("limited")


@pytest.fixture(autouse=True)
def every_request_is_one_that_google_takes(front: Front) -> Iterator[None]:
    before = front.requests.counts()
    yield
    after = front.requests.counts()
    assert after["validated"] > before["validated"]
    assert after["refused"] == before["refused"]


@pytest.fixture
def client(front: Front) -> storage.Client:
    return storage.Client(
        project=PROJECT,
        credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
        client_options={"api_endpoint": front.url},
    )


class TestGoogleCloudStorage:
    def test_upload_and_download(self, client: storage.Client, bucket: str) -> None:
        blob = client.bucket(bucket).blob("dir/a.txt")
        blob.metadata = {"k": "v"}
        blob.upload_from_string("text", content_type="text/plain", checksum="md5")
        result = client.bucket(bucket).get_blob("dir/a.txt")
        assert result is not None
        assert (result.size, result.content_type, result.metadata) == (4, "text/plain", {"k": "v"})
        assert result.download_as_bytes() == b"text"
        assert result.download_as_bytes(start=1, end=2) == b"ex"
        assert client.bucket(bucket).get_blob("none") is None

    def test_resumable_upload(self, client: storage.Client, bucket: str) -> None:
        content = os.urandom(3 * 256 * 1024 + 17)
        blob = client.bucket(bucket).blob("big", chunk_size=256 * 1024)
        with blob.open("wb", checksum="crc32c") as writer:
            writer.write(content)
        assert client.bucket(bucket).blob("big").download_as_bytes(checksum="crc32c") == content

    def test_generation_match(self, client: storage.Client, bucket: str) -> None:
        blob = client.bucket(bucket).blob("a")
        blob.upload_from_string("1", if_generation_match=0)
        with pytest.raises(PreconditionFailed):
            client.bucket(bucket).blob("a").upload_from_string("2", if_generation_match=0)
        blob.upload_from_string("2", if_generation_match=blob.generation)
        assert blob.download_as_text() == "2"

    def test_list_pages(self, client: storage.Client, bucket: str) -> None:
        for name in ("a/1", "a/2", "b", "c/1", "d"):
            client.bucket(bucket).blob(name).upload_from_string("x")
        listing = client.list_blobs(bucket, delimiter="/", page_size=2)
        assert [blob.name for blob in listing] == ["b", "d"]
        assert listing.prefixes == {"a/", "c/"}
        assert [blob.name for blob in client.list_blobs(bucket, prefix="a/")] == ["a/1", "a/2"]

    def test_delete_and_batch(self, client: storage.Client, bucket: str) -> None:
        names = [f"dir/{k}" for k in range(5)]
        for name in names:
            client.bucket(bucket).blob(name).upload_from_string("x")
        with client.batch(raise_exception=False) as batch:
            for name in [*names, "none"]:
                client.bucket(bucket).blob(name).delete()
        assert [response.status_code for response in batch._responses] == [204] * 5 + [404]
        assert list(client.list_blobs(bucket)) == []
        with pytest.raises(NotFound):
            client.bucket(bucket).blob("none").delete()

    def test_compose_rewrite_rename(self, client: storage.Client, bucket: str) -> None:
        handle = client.bucket(bucket)
        for name in ("a", "b"):
            handle.blob(name).upload_from_string(name * 10)
        whole = handle.blob("whole")
        whole.compose([handle.blob("a"), handle.blob("b")])
        assert whole.download_as_text() == "a" * 10 + "b" * 10
        handle.rename_blob(handle.blob("a"), "c")
        assert sorted(blob.name for blob in client.list_blobs(bucket)) == ["b", "c", "whole"]

    def test_bucket_settings(self, client: storage.Client, front: Front) -> None:
        handle = client.bucket("configured")
        handle.versioning_enabled = True
        handle.labels = {"env": "dev"}
        handle.iam_configuration.uniform_bucket_level_access_enabled = True
        handle.create(location="us-east5")
        again = client.get_bucket("configured")
        assert (again.location, again.versioning_enabled, again.labels) == ("US-EAST5", True, {"env": "dev"})
        again.add_lifecycle_delete_rule(number_of_newer_versions=3)
        again.patch()
        assert len(list(client.get_bucket("configured").lifecycle_rules)) == 1
        again.blob("a").upload_from_string("x")
        again.blob("a").delete()
        with pytest.raises(Conflict):
            again.delete()
        for blob in client.list_blobs(again, versions=True):
            blob.delete()
        again.delete()
        assert not client.bucket("configured").exists()


class TestGcsfs:
    @pytest.fixture
    def files(self, front: Front, monkeypatch: pytest.MonkeyPatch) -> GCSFileSystem:
        # gcsfs batches its deletions only against a host whose name has "storage" in it.
        monkeypatch.setattr(GCSFileSystem, "on_google", True)
        return GCSFileSystem(
            project=PROJECT,
            token="anon",
            endpoint_url=front.url,
            skip_instance_cache=True,
            use_listings_cache=False,
        )

    def test_write_list_read(self, files: GCSFileSystem, bucket: str) -> None:
        content = os.urandom(2_000_000)
        with files.open(f"{bucket}/dir/a b", "wb", block_size=256 * 1024) as writer:
            writer.write(content)
        files.pipe(f"{bucket}/dir/c", b"small")
        assert files.cat(f"{bucket}/dir/a b") == content
        assert files.ls(f"{bucket}/dir", detail=False) == [f"{bucket}/dir/a b", f"{bucket}/dir/c"]
        assert files.info(f"{bucket}/dir/c")["size"] == 5
        assert files.exists(f"{bucket}/dir")
        assert not files.exists(f"{bucket}/none")

    def test_rm_recursively_through_the_batch(self, files: GCSFileSystem, front: Front, bucket: str) -> None:
        names = ["steps/1/", "steps/1/a", "steps/1/deep/b", "steps/1/c#?d", "steps/2/a"]
        for name in names:
            front.put(bucket, name, b"x")
        files.rm(f"{bucket}/steps/1", recursive=True)
        left = front.request("GET", f"b/{bucket}/o").json["items"]
        assert [item["name"] for item in left] == ["steps/2/a"]

    def test_rename(self, files: GCSFileSystem, bucket: str) -> None:
        files.pipe(f"{bucket}/dir/a", b"1")
        files.mv(f"{bucket}/dir/a", f"{bucket}/dir/b")
        assert files.find(f"{bucket}/dir") == [f"{bucket}/dir/b"]


@pytest.mark.prove
def test_tensorstore_and_orbax(front: Front, bucket: str) -> None:
    """Checkpoints as the trainer makes them, in a process whose environment names our endpoint."""
    program = """
        import sys

        import jax.numpy as jnp
        import orbax.checkpoint as ocp
        import tensorstore as ts

        bucket = sys.argv[1]
        kv = ts.KvStore.open({"driver": "gcs", "bucket": bucket, "path": "kv/"}).result()
        kv.write("a", b"1").result()
        kv.write("b", b"x" * 3_000_000).result()
        first = kv.read("a").result()
        assert first.value == b"1"
        kv.write("a", b"2", if_equal=first.stamp.generation).result()
        stale = kv.write("a", b"3", if_equal=first.stamp.generation).result()
        assert stale.generation != kv.read("a").result().stamp.generation
        assert kv["a"] == b"2"
        assert kv["b"] == b"x" * 3_000_000
        assert sorted(kv.list().result()) == [b"a", b"b"]
        assert kv.read("none").result().state == "missing"
        kv.delete_range(ts.KvStore.KeyRange()).result()
        assert kv.list().result() == []

        options = ocp.CheckpointManagerOptions(max_to_keep=2)
        state = {"w": jnp.arange(12.0).reshape(3, 4), "step": 0}
        with ocp.CheckpointManager(f"gs://{bucket}/run/checkpoints", options=options) as manager:
            for step in (1, 2, 3):
                state["step"] = step
                manager.save(step, args=ocp.args.StandardSave(state))
            manager.wait_until_finished()
            assert manager.all_steps() == [2, 3], manager.all_steps()
        with ocp.CheckpointManager(f"gs://{bucket}/run/checkpoints", options=options) as manager:
            restored = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(state))
            assert restored["step"] == 3
            assert (restored["w"] == state["w"]).all()
    """
    environment = {
        **os.environ,
        "TENSORSTORE_GCS_HTTP_URL": front.url,
        "STORAGE_EMULATOR_HOST": front.url,
        "GOOGLE_CLOUD_PROJECT": PROJECT,
        "GCE_METADATA_MTLS_MODE": "none",
        "NO_GCE_CHECK": "true",
        "JAX_PLATFORMS": "cpu",
        # Over plain HTTP there is no gRPC for gcsfs to ask for the bucket's layout.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), bucket],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    names = [item["name"] for item in front.request("GET", f"b/{bucket}/o").json["items"]]
    assert not [name for name in names if name.startswith("run/checkpoints/1/")]
    assert [name for name in names if name.startswith("run/checkpoints/3/")]
