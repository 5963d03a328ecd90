"""The pinned interpreter, and the packed one where it can't be had."""

from __future__ import annotations

import hashlib
import http.server
import json
import platform
import subprocess
import tarfile
import threading
from importlib import resources
from pathlib import Path

import pytest

from infra.publish import interpreter, pack
from infra.publish.archive import write
from infra.publish.errors import PublishError


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, ...]]:
    archive = tmp_path_factory.mktemp("pack") / "python.tar.gz"
    return archive, pack.pack_running(archive)


def test_every_supported_python_has_a_pin() -> None:
    pins = json.loads((resources.files("infra.publish") / "pins.json").read_text("utf-8"))
    assert set(pins["interpreters"]) == {"3.11", "3.12", "3.13"}
    for minor, pin in pins["interpreters"].items():
        assert pin["version"].startswith(f"{minor}.")
        assert f"cpython-{pin['version']}%2B" in pin["url"]
        assert pin["url"].endswith("x86_64-unknown-linux-gnu-install_only_stripped.tar.gz")
        assert len(bytes.fromhex(pin["sha256"])) == 32


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
    assert all(name.startswith(needs) or pack._SYSTEM.match(name) for name in foreign), foreign


def test_the_pack_is_the_same_every_time(packed: tuple[Path, tuple[str, ...]], tmp_path: Path) -> None:
    pack.pack_running(tmp_path / "again.tar.gz")
    assert (tmp_path / "again.tar.gz").read_bytes() == packed[0].read_bytes()


@pytest.fixture
def download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A pin that leads to a server of this test; its content and requests can be looked at."""
    monkeypatch.setenv("TPU_CACHE", str(tmp_path / "cache"))
    state: dict[str, object] = {"content": b"an archive", "asked": 0}

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            state["asked"] = int(str(state["asked"])) + 1
            self.send_response(200)
            self.end_headers()
            self.wfile.write(bytes(state["content"]))  # type: ignore[arg-type]

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    state["server"] = server
    pin = interpreter._Pin(
        "3.99.1",
        f"http://127.0.0.1:{server.server_address[1]}/python.tar.gz",
        hashlib.sha256(b"an archive").hexdigest(),
    )
    monkeypatch.setattr(interpreter, "_pin", lambda minor: pin)
    return state


def test_a_pinned_archive_is_downloaded_once(download: dict[str, object]) -> None:
    chosen = interpreter.choose()
    assert chosen.archive.read_bytes() == b"an archive"
    assert "python-build-standalone" in chosen.why
    assert interpreter.choose().archive == chosen.archive
    assert download["asked"] == 1


def test_a_damaged_archive_is_downloaded_again(download: dict[str, object]) -> None:
    interpreter.choose().archive.write_bytes(b"damaged")
    assert interpreter.choose().archive.read_bytes() == b"an archive"


def test_a_pack_that_no_tpu_host_can_run_is_refused(
    download: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = download["server"]
    assert isinstance(server, http.server.ThreadingHTTPServer)
    server.shutdown()
    server.server_close()
    content = b""

    def pack_that(archive: Path) -> tuple[str, ...]:
        write(archive, {"python/lib/libx.so.1": content})
        return ()

    monkeypatch.setattr(pack, "pack_running", pack_that)
    for versions, fits in ((b"\0GLIBC_2.9\0GLIBC_2.35\0", True), (b"\0GLIBC_2.36\0GLIBC_2.4\0", False)):
        content = versions
        archive = interpreter.choose().archive
        if fits:
            assert interpreter.choose(for_tpu=True).archive == archive
        else:
            with pytest.raises(PublishError, match=r"needs glibc 2\.36, where .* or save http://"):
                interpreter.choose(for_tpu=True)
        archive.unlink()


def test_what_a_pack_needs_of_glibc_is_no_more_than_this_machine_has(
    packed: tuple[Path, tuple[str, ...]],
) -> None:
    current = int(platform.libc_ver()[1].split(".")[1])
    assert 17 <= pack.glibc_minor(packed[0]) <= current


def test_an_archive_with_other_content_is_refused(download: dict[str, object]) -> None:
    download["content"] = b"another archive"
    with pytest.raises(PublishError, match="don't use that connection"):
        interpreter.choose()


def test_what_can_not_be_reached_is_packed_and_said(
    download: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = download["server"]
    assert isinstance(server, http.server.ThreadingHTTPServer)
    server.shutdown()
    server.server_close()
    monkeypatch.setattr(
        pack, "pack_running", lambda archive: archive.write_bytes(b"packed") and ("libz.so.1",)
    )
    for _ in range(2):  # the second time from the cache, without asking the network again
        chosen = interpreter.choose()
        assert chosen.archive.read_bytes() == b"packed"
        assert "can't be downloaded" in chosen.why
        assert "these shared libraries: libz.so.1" in chosen.why


def test_an_unpinned_python_is_refused() -> None:
    with pytest.raises(PublishError, match=r"publish with one of 3\.11, 3\.12, 3\.13"):
        interpreter._pin("3.10")
