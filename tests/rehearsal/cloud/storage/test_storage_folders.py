"""Folders of a hierarchical namespace: over JSON, and as gcsfuse works on them over gRPC."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from storage_front import Front, object_path

from tests.limits import HANG_S

HOST = "host@wire-test.iam.gserviceaccount.com"


@pytest.fixture
def tree(new_bucket: Callable[..., str]) -> str:
    return new_bucket(
        hierarchicalNamespace={"enabled": True},
        iamConfiguration={"uniformBucketLevelAccess": {"enabled": True}},
        softDeletePolicy={"retentionDurationSeconds": "0"},
    )


def folders(front: Front, bucket: str, **query: Any) -> list[str]:
    items = front.request("GET", f"b/{bucket}/folders", **query).json.get("items", [])
    return [item["name"] for item in items]


def names(front: Front, bucket: str, **query: Any) -> list[str]:
    return [item["name"] for item in front.request("GET", f"b/{bucket}/o", **query).json.get("items", [])]


def make(front: Front, bucket: str, name: str, **query: Any) -> int:
    return front.request("POST", f"b/{bucket}/folders", {"name": name}, **query).status


def rename(front: Front, bucket: str, source: str, target: str, **query: Any) -> Any:
    encoded = [name.replace("/", "%2F") for name in (source, target)]
    return front.request("POST", f"b/{bucket}/folders/{encoded[0]}/renameTo/folders/{encoded[1]}", **query)


def test_made_by_hand_and_by_writes(front: Front, tree: str) -> None:
    assert make(front, tree, "a/b/") == 409, "its parent is missing"
    assert make(front, tree, "a/b/", recursive=True) == 200
    assert make(front, tree, "a/b") == 409, "it is there"
    assert make(front, tree, "/") == make(front, tree, "x" * 512) == 400
    front.put(tree, "c/d/file", b"x")
    assert folders(front, tree) == ["a/", "a/b/", "c/", "c/d/"]
    assert folders(front, tree, delimiter="/") == ["a/", "c/"]
    assert folders(front, tree, prefix="c/", startOffset="c/d/") == ["c/d/"]
    first = front.request("GET", f"b/{tree}/folders", pageSize=3).json
    assert folders(front, tree, pageToken=first["nextPageToken"]) == ["c/d/"]
    shown = front.request("GET", f"b/{tree}/folders/c%2Fd%2F").json
    assert (shown["kind"], shown["metageneration"]) == ("storage#folder", "1")
    assert front.request("GET", f"b/{tree}/folders/none%2F").status == 404


def test_empty_folders_are_listed_as_prefixes_where_that_is_asked_for(front: Front, tree: str) -> None:
    make(front, tree, "empty/")
    front.put(tree, "full/file", b"x")
    for requested, expected in ((True, ["empty/", "full/"]), (False, ["full/"])):
        page = front.request("GET", f"b/{tree}/o", delimiter="/", includeFoldersAsPrefixes=requested).json
        assert page["prefixes"] == expected
    inside = front.request(
        "GET", f"b/{tree}/o", delimiter="/", prefix="empty/", includeFoldersAsPrefixes=True
    )
    assert not {"items", "prefixes"} & inside.json.keys()


def test_only_an_empty_folder_is_deleted(front: Front, tree: str) -> None:
    front.put(tree, "a/b/file", b"x")
    for path in ("a%2F", "a%2Fb%2F"):
        refused = front.request("DELETE", f"b/{tree}/folders/{path}")
        assert (refused.status, refused.json["error"]["status"]) == (409, "FAILED_PRECONDITION")
    front.request("DELETE", object_path(tree, "a/b/file"))
    assert front.request("DELETE", f"b/{tree}").status == 409, "its folders are left"
    assert front.request("DELETE", f"b/{tree}/folders/a%2Fb%2F").status == 204
    assert folders(front, tree) == ["a/"]


def test_a_rename_is_an_operation_and_moves_all_of_it(front: Front, tree: str) -> None:
    made = front.put(tree, "a/deep/file", b"content").json
    make(front, tree, "a/empty/")
    front.put(tree, "a-file", b"not in it")
    for target, status in (("a/deep/", 400), ("none/b/", 409), ("a/", 400)):
        assert rename(front, tree, "a/", target).status == status, target
    assert rename(front, tree, "a/", "b/", ifSourceMetagenerationMatch=7).status == 412
    begun = rename(front, tree, "a/", "b/").json
    assert begun["done"] is False
    ended = front.request("GET", begun["selfLink"].partition("/storage/v1/")[2]).json
    assert (ended["done"], ended["response"]["name"]) == (True, "b/")
    assert folders(front, tree) == ["b/", "b/deep/", "b/empty/"]
    moved = front.request("GET", object_path(tree, "b/deep/file")).json
    assert moved["generation"] == made["generation"]
    assert front.read(tree, "b/deep/file").body == b"content"
    assert names(front, tree) == ["a-file", "b/deep/file"]
    assert rename(front, tree, "a/", "c/").status == 404


def test_nobody_sees_half_a_rename(front: Front, tree: str) -> None:
    expected = {f"{k:02}" for k in range(50)}
    for name in expected:
        front.put(tree, f"here/{name}", b"x")
    seen: list[list[str]] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            seen.append(names(front, tree))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for k in range(10):
        source, target = ("here/", "there/") if k % 2 == 0 else ("there/", "here/")
        assert rename(front, tree, source, target).status == 200
    ended.set()
    watcher.join()
    assert seen
    for listing in seen:
        assert len({name.partition("/")[0] for name in listing}) == 1
        assert {name.partition("/")[2] for name in listing} == expected


def test_a_flat_bucket_has_none(front: Front, bucket: str) -> None:
    assert make(front, bucket, "a/") == 409
    front.put(bucket, "a/file", b"x")
    assert front.request("GET", f"b/{bucket}/folders/a%2F").status == 409
    # What `gcloud storage rm --recursive` asks of every bucket.
    assert front.request("GET", f"b/{bucket}/managedFolders").json == {"kind": "storage#managedFolders"}


# Whatever the script leaves behind ends with it.
ALONE = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
SCRIPT = """
mount --bind "$1/hosts" /etc/hosts
gcsfuse --foreground --enable-hns=true --implicit-dirs --token-url="$2" --log-file="$1/log" \
  --metadata-cache-ttl-secs=0 "$3" "$1/mount" >"$1/out" 2>&1 &
until mountpoint --quiet "$1/mount"; do kill -0 $!; sleep 0.1; done
cd "$1/mount"
mkdir -p runs/one
echo text >runs/one/file
mkdir runs/empty
if rmdir runs/one; then exit 1; fi
mv runs renamed
[ ! -e runs ]
cat renamed/one/file
ls renamed
rm renamed/one/file
rmdir renamed/one renamed/empty
"""


@pytest.mark.root
def test_gcsfuse_works_on_folders_with_the_hosts_role(
    front: Front, tree: str, tmp_path: Path, limited: None
) -> None:
    """As hosts mount it: Google's own host name, TLS, gRPC, a token; in a mount namespace of its own."""
    address = f"127.{os.getpid() >> 16 & 255}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
    (tmp_path / "hosts").write_text(f"{address} storage.googleapis.com\n127.0.0.1 localhost\n")
    (tmp_path / "mount").mkdir()
    front.world.directory[f"projects/wire-test/serviceAccounts/{HOST}"] = {"email": HOST}
    policy = front.iam.policy(f"projects/_/buckets/{tree}")
    policy["bindings"].append({"role": "roles/storage.objectUser", "members": [f"serviceAccount:{HOST}"]})
    front.iam.set_policy(f"projects/_/buckets/{tree}", policy)
    before = front.requests.since(0)["next"]
    with front.tls(tmp_path, address, 443):
        url = f"{front.url}/token?principal={HOST}"
        done = subprocess.run(
            [*ALONE, "bash", "-euc", SCRIPT, "-", tmp_path, url, tree],
            env={**os.environ, "SSL_CERT_FILE": str(tmp_path / "ca.pem")},
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "log").read_text()[-3000:]
    assert done.stdout.split() == ["text", "empty", "one"]
    assert folders(front, tree) == ["renamed/"]
    methods = {entry["method_id"] for entry in front.requests.since(before)["requests"]}
    assert not {"storage.objects.move", "storage.objects.rewrite", "storage.objects.copy"} & methods
