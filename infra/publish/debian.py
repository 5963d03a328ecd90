"""Debian packages of a lock (tools/slurm/packages.txt): downloaded by hash, joined into an archive.

An archive unpacks over an image's root without dpkg, which TPU hosts' Ubuntu would refuse them with. It has
no documentation; its files belong to root, keep their modes and are the same bytes for the same lock.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from inspect import getsource
from pathlib import Path

import requests

from infra.publish.cache import cache_dir, key_of, once
from infra.publish.errors import PublishError

__all__ = ["MIRROR", "Package", "archive", "locked"]

MIRROR = "TPU_DEBIAN_MIRROR"
"""Variable with the folders above Debian's pools, instead of those of this machine's apt."""

_LEFT_OUT = re.compile(
    r"(usr/share/(doc|man|info|lintian|locale|bug|doc-base|apport|pam-configs|bash-completion)"
    # PMIx without its library: slurmd complains in each log.
    r"|usr/lib/x86_64-linux-gnu/slurm-wlm/mpi_pmix"
    r"|etc/(init\.d|cron|logrotate|apparmor|logcheck|insserv)"
    # Tools of MariaDB that nothing here runs, each with a server's library in it: nine tenths of its size.
    r"|usr/bin/(aria|galera|innochecksum|innotop|m?y?isam|msql|mysql|mytop|perror|replace|resolve_|wsrep)"
    r"|usr/bin/mariadb(-(?!(admin|dump|install-db)$)|check$|d-))"
)
# What dpkg's alternatives link: /usr/sbin/slurmd to slurmd-wlm, MariaDB's settings.
_ALTERNATIVES = {"-wlm": "", "/mysql/mariadb.cnf": "/mysql/my.cnf"}
# One folder each in both images, with the old names as links.
_MERGED = re.compile(r"^(bin|sbin|lib|lib64)(?=/|$)")
_TIMEOUT_S = 60
_PARALLEL = 8


@dataclass(frozen=True)
class Package:
    """A locked package; `path` is in Debian's pool."""

    archive: str
    name: str
    version: str
    sha256: str
    path: str


def locked(lock: Path) -> list[Package]:
    """Return the packages of a lock."""
    lines = (line.split() for line in lock.read_text("utf-8").splitlines() if not line.startswith("#"))
    return [Package(*words) for words in lines]


def archive(packages: list[Package]) -> Path:
    """Return the packages' files as one tar.gz, made once for the same packages. Raises PublishError."""
    key = key_of(
        *(package.sha256 for package in packages), getsource(_write), getsource(_files), _LEFT_OUT.pattern
    )
    return once(cache_dir("debian") / f"{key}.tar.gz", lambda made: _write(_fetched(packages), made))


def _fetched(packages: list[Package]) -> list[Path]:
    folder, mirrors = cache_dir("debian", "pool"), _mirrors()
    with ThreadPoolExecutor(_PARALLEL) as pool:
        return list(pool.map(lambda package: _fetch(package, folder, mirrors), packages))


def _fetch(package: Package, folder: Path, mirrors: list[str]) -> Path:
    def download(into: Path) -> None:
        answers = []
        # What a security update brought moves to the main pool at the next point release.
        main = package.path.replace("pool/updates/", "pool/", 1)
        for mirror in mirrors:
            for path in dict.fromkeys((package.path, main)):
                try:
                    reply = requests.get(f"{mirror.rstrip('/')}/{path}", timeout=_TIMEOUT_S)
                except requests.RequestException as error:
                    answers.append(f"{mirror}: {type(error).__name__}")
                    break
                if reply.status_code != requests.codes.ok:
                    answers.append(f"{mirror}: HTTP {reply.status_code}")
                elif hashlib.sha256(reply.content).hexdigest() != package.sha256:
                    answers.append(f"{mirror}: another sha256")
                else:
                    into.write_bytes(reply.content)
                    return
        snapshots = " ".join(f"ARCHIVE/{name}/DATE" for name in ("debian", "debian-security"))
        raise PublishError(
            f"{package.name} {package.version}, which the machines need, can't be downloaded "
            f"({', '.join(dict.fromkeys(answers)) or 'this machine has no apt, which names mirrors'}). "
            f"Name mirrors that have it: {MIRROR}='{snapshots}', where ARCHIVE is Debian's archive of "
            f"snapshots and DATE e.g. 20261126T000000Z; or copy {folder} from a machine that has published"
        )

    return once(folder / package.sha256, download)


def _mirrors() -> list[str]:
    """Return the folders above pools: of the variable, else of this machine's apt, if it has one."""
    if chosen := os.environ.get(MIRROR, "").split():
        return chosen
    if not shutil.which("apt-get"):
        return []
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return list(dict.fromkeys(done.stdout.split()))


def _write(debs: list[Path], made: Path) -> None:
    """Write the files of packages, sorted, of root, without times."""
    members: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
    for deb in debs:
        members |= {entry.name: (entry, content) for entry, content in _files(deb)}
    with (
        made.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for _, (entry, content) in sorted(members.items()):
            tar.addfile(entry, io.BytesIO(content))


def _files(deb: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(_data(deb.read_bytes()))) as tar:
        for member in tar:
            name = _MERGED.sub(r"usr/\1", member.name.removeprefix("./").removeprefix("/").rstrip("/"))
            if name in {"", "."} or _LEFT_OUT.match(name):
                continue
            entry = tarfile.TarInfo(name)
            entry.mode = member.mode
            if member.isdir():
                entry.type = tarfile.DIRTYPE
                yield entry, b""
            elif member.issym():
                entry.type, entry.linkname = tarfile.SYMTYPE, member.linkname
                yield entry, b""
            elif (opened := tar.extractfile(member)) is not None:  # a hard link's content, too
                content = opened.read()
                entry.size = len(content)
                yield entry, content
                for end, other in _ALTERNATIVES.items():
                    if name.endswith(end):
                        link = tarfile.TarInfo(name.removesuffix(end) + other)
                        link.type, link.linkname = tarfile.SYMTYPE, Path(name).name
                        yield link, b""


def _data(deb: bytes) -> bytes:
    """Return the member data.tar.* of a package, an ar archive (deb(5))."""
    at = 8
    while at + 60 <= len(deb):
        name, size = deb[at : at + 16].decode().strip(), int(deb[at + 48 : at + 58])
        if name.startswith("data.tar"):
            return deb[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    raise PublishError("a Debian package has no data.tar")
