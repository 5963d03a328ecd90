"""Packs the running Python so that it runs from any folder of another machine.

For where the pinned interpreter can't be downloaded. The pack holds the executable, the standard library and
the shared libraries of this Python's own folder, such as libpython; the search paths in them that lead to
that folder are made relative. Shared libraries from elsewhere are left to the host.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

from infra.publish.archive import write
from infra.publish.errors import PublishError
from infra.publish.wheels import PYTHON

__all__ = ["glibc_minor", "pack_running"]

# What every Linux with this C library has: the loader and glibc's own libraries.
_SYSTEM = re.compile(r"(ld-linux|linux-vdso|lib(c|m|dl|rt|util|pthread|resolv|anl|mvec|gcc_s)\.so)")
_LEFT_OUT = {"test", "idlelib", "turtledemo", "tkinter", "ensurepip", "lib2to3", "__pycache__"}
_LEFT_OUT |= {"site-packages", "dist-packages"}
_LDD_LINE = re.compile(r"\s*(\S+) => (/\S+) \(")
# As the objects' string tables have the versions of the symbols that they ask for.
_GLIBC = re.compile(rb"\0GLIBC_2\.(\d+)(?=\0)")
_MODULE_WITHOUT_USE = re.compile(r"(nis|_tkinter|_test\w*|_xxtest\w*|_ctypes_test)\.")


def pack_running(archive: Path) -> tuple[str, ...]:
    """Write the pack to `archive` (tar.gz, the same bytes every time).

    Returns the shared libraries that a host must have itself, sorted.
    """
    version = f"python{PYTHON}"
    executable = Path(sys.base_prefix, "bin", version).resolve()
    library = Path(
        sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix})
    )
    if not executable.is_file() or not (library / "os.py").is_file():
        raise PublishError(f"this Python isn't laid out as bin/{version} and lib/{version}: use another one")
    modules = _files(library)
    objects = [executable, *(path for path in modules.values() if path.suffix == ".so")]
    own = Path(sys.base_prefix, "lib").resolve()
    shared = _shared_libraries(objects)
    own_libraries = {name: path for name, path in shared.items() if path.resolve().parent == own}

    members: dict[str, bytes] = {f"lib/{version}/{name}": path.read_bytes() for name, path in modules.items()}
    members[f"bin/{version}"] = executable.read_bytes()
    members |= {f"lib/{name}": path.read_bytes() for name, path in own_libraries.items()}
    for name in filter(_is_object, members):
        members[name] = _moved(members[name], Path(sys.base_prefix, "lib"), name)
    links = {"bin/python3": version, "bin/python": version}
    write(
        archive,
        {f"python/{name}": content for name, content in members.items()},
        {f"python/{name}": target for name, target in links.items()},
        executable={f"python/{name}" for name in members if _is_object(name)},
    )
    return tuple(sorted(shared.keys() - own_libraries.keys()))


def glibc_minor(archive: Path) -> int:
    """Return the newest glibc 2.x that anything in a pack asks for; 0 where nothing does."""
    newest = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member) if _is_object(member.name.removeprefix("python/")) else None
            if content is not None:
                newest = max([newest, *map(int, _GLIBC.findall(content.read()))])
    return newest


def _is_object(name: str) -> bool:
    return name.startswith("bin/") or ".so" in Path(name).name


def _files(library: Path) -> dict[str, Path]:
    """Return name below the library → file, without tests, caches and what builds C."""
    stored: dict[str, Path] = {}
    for path in sorted(library.rglob("*")):
        name = path.relative_to(library)
        static = name.parts[0].startswith("config-") and path.suffix in {".a", ".o"}
        if (
            _LEFT_OUT & set(name.parts)
            or static
            or _MODULE_WITHOUT_USE.match(path.name)
            or not path.is_file()
        ):
            continue
        stored[str(name)] = path
    return stored


def _shared_libraries(objects: list[Path]) -> dict[str, Path]:
    """Return soname → file of all that `objects` load beyond the C library."""
    # ldd answers for many files at once; a static one among them makes it fail.
    printed = subprocess.run(["ldd", *map(str, objects)], capture_output=True, text=True, check=False).stdout
    if "not found" in printed:
        raise PublishError(f"this Python lacks shared libraries itself, see: ldd {objects[0]}")
    libraries = {match[1]: Path(match[2]) for match in map(_LDD_LINE.match, printed.splitlines()) if match}
    return {name: path for name, path in libraries.items() if not _SYSTEM.match(name)}


def _moved(content: bytes, library: Path, name: str) -> bytes:
    """Rewrite an object's search path `library`, which ends in a zero, to `lib` relative to its folder."""
    folders = Path(name).parts[:-1]
    relative = (
        "$ORIGIN/../lib" if folders[0] == "bin" else "/".join(["$ORIGIN", *[".."] * (len(folders) - 1)])
    )
    old, new = f"{library}\0".encode(), f"{relative}\0".encode()
    if old in content and len(new) > len(old):
        raise PublishError(
            f"this Python lies in {library}, too short a path to be rewritten: use another one"
        )
    return content.replace(old, new.ljust(len(old), b"\0"))
