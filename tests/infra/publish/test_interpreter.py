"""The pinned interpreter, and the packed one where it can't be had."""

from __future__ import annotations

import hashlib
import http.server
import json
import platform
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from infra.publish import interpreter, pack
from infra.publish.archive import write
from infra.publish.errors import PublishError


def test_the_pack_runs_elsewhere_without_this_machines_python(
    packed: tuple[Path, tuple[str, ...]], tmp_path: Path
) -> None:
    archive, needs = packed
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path], check=True)  # Python 3.11.2's has no filter
    with tarfile.open(archive) as tar:
        names = {part for name in tar.getnames() for part in Path(name).parts}
    assert not names & {"test", "idlelib", "site-packages", "dist-packages", "__pycache__"}
    code = """if True:
        import bz2, ctypes, hashlib, json, lzma, ssl, sys, zlib, venv
        maps = open("/proc/self/maps").read()
        print(json.dumps([sys.prefix, sys.path, sorted({line.split()[-1] for line in maps.splitlines()})]))
    """
    python = tmp_path / "python/bin/python3"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, env={}, check=False)
    assert done.returncode == 0, done.stderr
    prefix, path, loaded = json.loads(done.stdout)
    assert prefix == str(tmp_path / "python")
    assert all(folder.startswith(prefix) for folder in path)
    foreign = {Path(file).name for file in loaded if ".so" in file and not file.startswith(prefix)}
    # A file is called after its whole version, what asks for it (libbz2.so.1.0) by the beginning of that.
    assert all(name.startswith((*needs, "ld-linux", "libc.", "libm.")) for name in foreign), foreign


@pytest.mark.prove
def test_the_pack_is_the_same_every_time(packed: tuple[Path, tuple[str, ...]], tmp_path: Path) -> None:
    pack.pack_running(tmp_path / "again.tar.gz")
    assert (tmp_path / "again.tar.gz").read_bytes() == packed[0].read_bytes()


@pytest.fixture
def release(
    tmp_path: Path, packed: tuple[Path, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """An archive that uv takes for the release of this Python's minor version; without it none can be had."""
    monkeypatch.setenv("TPU_CACHE", str(tmp_path / "cache"))
    archive = tmp_path / "site/cpython-3.99.tar.gz"
    archive.parent.mkdir()
    shutil.copy(packed[0], archive)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=archive.parent)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    major, minor = sys.version_info[:2]
    known = {
        "name": "cpython", "arch": {"family": "x86_64", "variant": None}, "os": "linux", "libc": "gnu",
        "major": major, "minor": minor, "patch": 99, "prerelease": "", "variant": None, "build": "1",
        "url": f"http://127.0.0.1:{server.server_port}/{archive.name}",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
    }  # fmt: skip
    (tmp_path / "releases.json").write_text(
        json.dumps({f"cpython-{major}.{minor}.99-linux-x86_64-gnu": known})
    )
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS_JSON_URL", str(tmp_path / "releases.json"))
    yield archive
    server.shutdown()
    server.server_close()


def test_the_archive_that_uv_pins_is_downloaded_once(release: Path) -> None:
    content = release.read_bytes()
    chosen = interpreter.choose()
    assert chosen.archive.read_bytes() == content
    assert chosen.why == "cpython-3.99.tar.gz of python-build-standalone"
    release.unlink()
    again = interpreter.choose(for_tpu=True)
    assert again == chosen
    assert (chosen.new, again.new) == (True, False), "reported once"


def test_a_damaged_archive_is_downloaded_again(release: Path) -> None:
    whole = release.read_bytes()
    middle = len(whole) // 2
    chosen = interpreter.choose()
    chosen.archive.write_bytes(whole[:middle] + b"damaged" + whole[middle + 7 :])
    assert interpreter.choose() == chosen
    assert chosen.archive.read_bytes() == whole


def test_an_archive_with_other_content_is_never_used(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(release, {"python/bin/python3": b"another"})
    monkeypatch.setattr(pack, "pack_running", lambda made: made.write_bytes(b"packed") and ())
    chosen = interpreter.choose()
    assert chosen.archive.read_bytes() == b"packed"
    assert "Hash mismatch" in chosen.why


def test_without_a_download_this_python_is_packed_once(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release.unlink()
    packs: list[Path] = []
    monkeypatch.setattr(
        pack,
        "pack_running",
        lambda made: packs.append(made) or (made.write_bytes(b"packed") and ("libz.so.1",)),
    )
    for new in (True, False):
        chosen = interpreter.choose()
        assert chosen.new is new, "reported once"
        assert chosen.archive.read_bytes() == b"packed"
        assert "can't be downloaded (" in chosen.why
        assert "these shared libraries: libz.so.1" in chosen.why
    assert len(packs) == 1


@pytest.mark.parametrize(("versions", "fits"), [
    (b"\0GLIBC_2.9\0GLIBC_2.35\0", True), (b"\0GLIBC_2.36\0GLIBC_2.4\0", False),
])  # fmt: skip
def test_a_pack_that_no_tpu_host_can_run_is_refused(
    versions: bytes, fits: bool, release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release.unlink()
    monkeypatch.setattr(
        pack, "pack_running", lambda made: write(made, {"python/lib/libx.so.1": versions}) or ()
    )
    archive = interpreter.choose().archive
    if fits:
        assert interpreter.choose(for_tpu=True).archive == archive
    else:
        with pytest.raises(PublishError, match=r"needs glibc 2\.36, where .* or copy .*/interpreters/uv-"):
            interpreter.choose(for_tpu=True)


def test_what_a_pack_needs_of_glibc_is_no_more_than_this_machine_has(
    packed: tuple[Path, tuple[str, ...]],
) -> None:
    current = int(platform.libc_ver()[1].split(".")[1])
    assert 17 <= pack.glibc_minor(packed[0]) <= current
