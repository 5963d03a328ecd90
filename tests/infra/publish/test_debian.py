"""Debian packages of the machines: what of them is packed, and where they come from."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import re
import struct
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.publish import debian
from infra.publish.debian import Package
from infra.publish.errors import PublishError
from infra.publish.wheels import HOST_GLIBC_MINOR
from infra.settings.sources import ROOT
from rehearsal.hosts.image import ensure_image
from rehearsal.world.layout import cache_dir

LOCK = ROOT / "tools/slurm/packages.txt"
# The soname of a library that the packages take from the image → its package, the same in Debian 12 and
# Ubuntu 22.04 (packages.ubuntu.com/jammy).
OF_IMAGES = {
    "ld-linux-x86-64.so.2": "libc6", "libblkid.so.1": "libblkid1", "libbz2.so.1.0": "libbz2-1.0",
    "libc.so.6": "libc6", "libcap.so.2": "libcap2", "libcom_err.so.2": "libcom-err2",
    "libcrypt.so.1": "libcrypt1", "libcrypto.so.3": "libssl3", "libdbus-1.so.3": "libdbus-1-3",
    "libdevmapper.so.1.02.1": "libdevmapper1.02.1", "libdl.so.2": "libc6", "libedit.so.2": "libedit2",
    "libgcc_s.so.1": "libgcc-s1", "libgcrypt.so.20": "libgcrypt20",
    "libgssapi_krb5.so.2": "libgssapi-krb5-2", "libjson-c.so.5": "libjson-c5",
    "libkeyutils.so.1": "libkeyutils1", "libkrb5.so.3": "libkrb5-3", "libldap-2.5.so.0": "libldap-2.5-0",
    "liblz4.so.1": "liblz4-1", "libm.so.6": "libc6", "libmount.so.1": "libmount1", "libpam.so.0": "libpam0g",
    "libpam_misc.so.0": "libpam0g", "libpcre2-8.so.0": "libpcre2-8-0", "libreadline.so.8": "libreadline8",
    "libresolv.so.2": "libc6", "libsqlite3.so.0": "libsqlite3-0", "libssl.so.3": "libssl3",
    "libstdc++.so.6": "libstdc++6", "libsystemd.so.0": "libsystemd0", "libtinfo.so.6": "libtinfo6",
    "libtirpc.so.3": "libtirpc3", "libudev.so.1": "libudev1", "libuuid.so.1": "libuuid1",
    "libwrap.so.0": "libwrap0", "libz.so.1": "zlib1g",
}  # fmt: skip
# The export of /home, which the controller alone does: a Debian 12.
OF_NFS_SERVERS = {"blkmapd", "nfsdcld", "rpc.gssd", "rpc.idmapd", "rpc.svcgssd"}


def deb(**files: str) -> bytes:
    """Return a package with these files, as deb(5) has it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.size, entry.mode, entry.mtime, entry.uid = len(content), 0o4755, 5, 1000
            tar.addfile(entry, io.BytesIO(content.encode()))
    members = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": data.getvalue()}
    packed = b"!<arch>\n"
    for name, content in members.items():
        packed += f"{name:16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        packed += b"\n" * (len(content) % 2)
    return packed


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A mirror of Debian on loopback, an empty cache."""
    folder = tmp_path / "mirror"
    (folder / "pool/main").mkdir(parents=True)
    handler = functools.partial(_Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    monkeypatch.setenv(debian.MIRROR, f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("TPU_CACHE", str(tmp_path / "cache"))
    yield folder
    server.shutdown()
    server.server_close()


def package(content: bytes, path: str = "pool/main/a.deb") -> Package:
    return Package("slurm", "a", "1-1", hashlib.sha256(content).hexdigest(), path)


def test_an_archive_belongs_to_root_keeps_modes_and_has_no_documentation(mirror: Path) -> None:
    content = deb(**{
        "sbin/mount.nfs": "program", "usr/sbin/slurmd-wlm": "daemon", "usr/share/doc/a/copyright": "text",
        "usr/share/man/man8/slurmd.8": "page", "lib/systemd/system/a.service": "unit",
    })  # fmt: skip
    (mirror / "pool/main/a.deb").write_bytes(content)
    made = debian.archive([package(content)])
    with tarfile.open(made) as tar:
        entries = {entry.name: entry for entry in tar}
    # Images have /sbin and /lib as links, which an entry of that name would replace.
    assert set(entries) == {
        "usr/sbin/mount.nfs", "usr/sbin/slurmd-wlm", "usr/sbin/slurmd", "usr/lib/systemd/system/a.service"
    }  # fmt: skip
    assert {(entry.uid, entry.gid, entry.mtime) for entry in entries.values()} == {(0, 0, 0)}
    assert entries["usr/sbin/mount.nfs"].mode == 0o4755
    assert entries["usr/sbin/slurmd"].linkname == "slurmd-wlm", "as dpkg's alternatives link it"
    before = made.read_bytes()
    made.unlink()
    assert debian.archive([package(content)]).read_bytes() == before


def test_a_security_update_is_found_where_a_point_release_moved_it(mirror: Path) -> None:
    content = deb(**{"usr/bin/a": "a"})
    (mirror / "pool/main/a.deb").write_bytes(content)
    assert debian.archive([package(content, "pool/updates/main/a.deb")]).is_file()


@pytest.mark.parametrize("stored", [None, b"another content"])
def test_a_package_that_can_not_be_had_is_named_with_where_it_may_be(
    stored: bytes | None, mirror: Path
) -> None:
    if stored:
        (mirror / "pool/main/a.deb").write_bytes(stored)
    with pytest.raises(PublishError) as caught:
        debian.archive([package(b"content")])
    text = str(caught.value)
    assert text.startswith("a 1-1, which the machines need, can't be downloaded")
    assert ("another sha256" if stored else "HTTP 404") in text
    assert "TPU_DEBIAN_MIRROR='ARCHIVE/debian/DATE ARCHIVE/debian-security/DATE'" in text
    assert not list((mirror.parent / "cache/debian").glob("*.tar.gz"))


class Objects:
    """The binaries of the locked packages: what each needs, and the newest glibc 2.x of it."""

    def __init__(self) -> None:
        self.needed: dict[str, list[str]] = {}
        self.glibc: dict[str, int] = {}
        self.names: set[str] = set()
        packages = debian.locked(LOCK)
        for archive in dict.fromkeys(item.archive for item in packages):
            with tarfile.open(debian.archive([item for item in packages if item.archive == archive])) as tar:
                for entry in tar:
                    self.names.add(Path(entry.name).name)
                    opened = tar.extractfile(entry) if entry.isreg() else None
                    if opened and (content := opened.read())[:5] == b"\x7fELF\2":
                        self.needed[entry.name] = needed_by(content)
                        versions = re.findall(rb"\0GLIBC_2\.(\d+)(?=\0)", content)
                        self.glibc[entry.name] = max(map(int, versions), default=0)


def needed_by(content: bytes) -> list[str]:
    """Return the sonames that an object asks for. elf(5)"""
    (at,), (size, count) = struct.unpack_from("<Q", content, 32), struct.unpack_from("<HH", content, 54)
    segments = [struct.unpack_from("<IIQQQQQQ", content, at + number * size) for number in range(count)]
    dynamic = next((segment for segment in segments if segment[0] == 2), None)
    if dynamic is None:
        return []
    tags = list(struct.iter_unpack("<qQ", content[dynamic[2] : dynamic[2] + dynamic[5] // 16 * 16]))
    table = next(value for tag, value in tags if tag == 5)
    (start,) = (table - s[3] + s[2] for s in segments if s[0] == 1 and s[3] <= table < s[3] + s[5])
    strings = (content[start + value :] for tag, value in tags if tag == 1)
    return [text[: text.index(b"\0")].decode() for text in strings]


@pytest.fixture(scope="module")
def objects() -> Objects:
    return Objects()


def test_no_program_of_a_tpu_host_needs_a_newer_c_library_than_its_image_has(objects: Objects) -> None:
    newer = {name for name, minor in objects.glibc.items() if minor > HOST_GLIBC_MINOR}
    assert len(objects.glibc) > 100
    assert {Path(name).name for name in newer} == {"libevent_core-2.1.so.7.0.1"}
    users = {Path(name).name for name, needed in objects.needed.items() if "libevent_core-2.1.so.7" in needed}
    assert users <= OF_NFS_SERVERS


def test_each_shared_library_comes_along_or_is_in_both_images(objects: Objects) -> None:
    wanted = {soname for needed in objects.needed.values() for soname in needed}
    assert wanted - objects.names == set(OF_IMAGES)
    libraries = ensure_image(cache_dir()) / "usr/lib/x86_64-linux-gnu"
    assert [soname for soname in OF_IMAGES if not (libraries / soname).exists()] == []
