"""Check the tools on this machine, with a fix for each that is missing. Needs nothing but Python.

make doctor

Exit status 0: both `make test` and `make rehearse` can run here. 1: something that they need is
missing. What only a real cloud needs (a login, official plugins) never fails the doctor.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import date
from pathlib import Path

from infra.doctor.finding import MISSING, OK, OPTIONAL, Finding, table
from infra.settings.sources import INSTALLED, ROOT, part

VENV_BIN = Path(sys.executable).parent if INSTALLED else ROOT / ".venv" / "bin"


def output_of(*command: str) -> str | None:
    """First line of what a command prints, or None if it can't be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True, cwd=ROOT)
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout.strip() or done.stderr.strip() or "yes").splitlines()[0]


def program(name: str) -> str | None:
    """Return a program's path in the virtual environment or on PATH."""
    inside = VENV_BIN / name
    return str(inside) if inside.exists() else shutil.which(name)


def origin(where: str) -> str:
    """Return the origin of a program: tools/install.sh keeps its builds in folders that end in a key."""
    match = re.search(
        r"/tools/(pulumi|pulumi-language-python|storage)-[0-9a-f]{16}/", os.path.realpath(where)
    )
    return (
        "pinned build"
        if match or (Path(where).parent == VENV_BIN and not Path(where).is_symlink())
        else "official"
    )


def python() -> Finding:
    """Check the interpreter: 3.11, 3.12 or 3.13, with venv."""
    version = ".".join(map(str, sys.version_info[:3]))
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Finding("Python", MISSING, version, "name one of 3.11–3.13: make PYTHON=python3.12 …")
    if output_of(sys.executable, "-c", "import venv, ensurepip") is None:
        return Finding("Python", MISSING, f"{version} without venv", "apt-get install python3-venv")
    return Finding("Python", OK, version)


def packages() -> Finding:
    """Check the locked packages in the virtual environment."""
    desired = part("requirements.txt").read_text().count("==")
    if not (VENV_BIN / "python").exists():
        return Finding("Python packages", MISSING, f"0 of {desired}", "make setup")
    return Finding("Python packages", OK, f".venv → {(ROOT / '.venv').resolve().name}")


def go() -> Finding:
    """Needed only to build the programs below."""
    version = output_of("go", "version")
    if version:
        return Finding("Go", OK, version.removeprefix("go version "))
    if program("gcsfuse") and program("pulumi"):
        return Finding("Go", OPTIONAL, "not found, and not needed: all programs are built")
    return Finding("Go", MISSING, "not found", "install Go 1.26 or newer (it builds pulumi and gcsfuse)")


def programs() -> Iterator[Finding]:
    """Check the pinned programs that set-up builds or finds."""
    versions = {"pulumi": ("version",), "pulumi-language-python": (), "gcsfuse": ("--version",)}
    for name, arguments in versions.items():
        where = program(name)
        if where is None:
            module = {"gcsfuse": "storage"}.get(name, name)
            by_hand = f"{part('tools/install.sh')} {module}, and the folder that it prints on PATH"
            yield Finding(name, MISSING, "not found", by_hand if INSTALLED else "make setup")
        else:
            version = output_of(where, *arguments) if arguments else "yes"
            yield Finding(name, OK, f"{version} ({origin(where)})")


def plugin(package: str) -> Finding:
    """Check for an installed official provider plugin."""
    home = Path(os.environ.get("PULUMI_HOME", Path.home() / ".pulumi"))
    locked = re.search(rf"^pulumi-{package}==([\w.]+)", part("requirements.txt").read_text(), re.MULTILINE)
    version = locked.group(1) if locked else ""
    # The CLI takes a plugin of exactly the version that the program's SDK has.
    executable = home / "plugins" / f"resource-{package}-v{version}" / f"pulumi-resource-{package}"
    fix = f"for the real cloud: pulumi plugin install resource {package} {version}"
    what = f"{package} provider plugin"
    if not executable.is_file():
        versions = sorted(
            path.name for path in (home / "plugins").glob(f"resource-{package}-v*") if path.is_dir()
        )
        state = f"not v{version}" + (
            f" but {', '.join(versions)}" if versions else ": the rehearsal has a stand-in"
        )
        return Finding(what, OPTIONAL, state, fix)
    with executable.open("rb") as file:
        if b"rehearsal.providers.gcp serve" in file.read(1024):
            fix = f"remove {executable.parent}, then {fix}"
            return Finding(what, OPTIONAL, f"v{version}, but it is the stand-in", fix)
    return Finding(what, OK, f"v{version}")


def machine() -> Iterator[Finding]:
    """Check the rehearsal's requirements of the kernel and of the user."""
    root = os.geteuid() == 0
    yield (
        Finding("root", OK, "yes")
        if root
        else Finding("root", MISSING, f"uid {os.geteuid()}", "sudo make rehearse")
    )
    unshared = output_of("unshare", "--mount", "--net", "--uts", "--pid", "--fork", "true")
    # What the rehearsal's firewall consists of, tried where it touches nobody's rules.
    rules = (
        "table inet t { set s { type ipv4_addr; flags dynamic; }; chain c { ct state established accept; }; }"
    )
    nft = output_of("unshare", "--net", "nft", rules)
    for what, result, missing, fix in (
        ("/dev/fuse", _usable("/dev/fuse"), "no", "modprobe fuse"),
        ("loop devices", _usable("/dev/loop-control"), "no", "modprobe loop"),
        ("control groups", control_groups(), "none that can be written",
         "run outside of a container, or in one with a writable /sys/fs/cgroup"),
        ("namespaces", "" if unshared is None else "mount, net, uts, pid", "refused",
         "run outside of a container that forbids unshare"),
        ("firewall", "" if nft is None else "nftables, connection tracking", "nftables refuses a table",
         "apt-get install nftables; modprobe -a nf_tables nf_conntrack"),
    ):  # fmt: skip
        if result:
            yield Finding(what, OK, result)
        elif root:
            yield Finding(what, MISSING, missing, fix)
        else:  # what is kept from a user says nothing about the machine
            yield Finding(what, MISSING, "only root can tell", "sudo make doctor")
    free_gib = shutil.disk_usage(Path.home()).free / 2**30
    fix = "free 15 GiB: 5 for programs, 5 for the tests' torch, the rest for a world"
    state, fix = (OK, "") if free_gib > 15 else (MISSING, fix)
    yield Finding("disk", state, f"{free_gib:.0f} GiB free", fix)


def _usable(device: str) -> str:
    return "yes" if os.access(device, os.R_OK | os.W_OK) else ""


def control_groups() -> str:
    """Return the hierarchies in which systemd can manage machines; "" if there are none, or not for us."""
    hierarchies = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options.split(",")):
            if not os.access(before.split()[4], os.W_OK):
                return ""
            hierarchies.append("version 2" if kind == "cgroup2" else "version 1")
    return ", ".join(hierarchies)


def debian_packages() -> Finding:
    """Check the packages that tools/setup.sh names."""
    match = re.search(r'^packages="([^"]+)"', (ROOT / "tools" / "setup.sh").read_text(), re.MULTILINE)
    desired = match.group(1).split() if match else []
    if shutil.which("dpkg-query") is None:
        return Finding("Debian packages", OPTIONAL, "not Debian", f"install yourself: {' '.join(desired)}")
    query = ("dpkg-query", "-W", "-f", "${Status}")
    missing = [name for name in desired if "ok installed" not in (output_of(*query, name) or "")]
    if missing:
        names = " ".join(missing)
        return Finding("Debian packages", MISSING, f"missing: {names}", f"apt-get install {names}")
    return Finding("Debian packages", OK, f"all {len(desired)}")


def login() -> Finding:
    """Check for a Google Cloud login, which only the real cloud needs."""
    what, fix = "Google login", "gcloud auth application-default login"
    usual = Path.home() / ".config/gcloud/application_default_credentials.json"
    path = Path(os.environ.get("GOOGLE_APPLICATION_CREDENTIALS", usual))
    if not path.exists():
        return Finding(what, OPTIONAL, "none: the rehearsal needs none", f"for the real cloud: {fix}")
    try:
        kind = json.loads(path.read_text()).get("type", "unknown")
    except (OSError, ValueError):
        return Finding(what, OPTIONAL, f"{path} can't be read", fix)
    return Finding(what, OK, f"application default credentials ({kind})")


def catalog() -> Finding:
    """Report the zones and prices that ship with the project, and their dates."""
    code = "from infra.catalog import summary; print(summary())"
    output = output_of(program("python") or sys.executable, "-c", code)
    return Finding(
        "zone catalog", OK if output else MISSING, output or "can't be read", "" if output else "make setup"
    )


def prices(today: date) -> Finding:
    """Report the price book's state; an old price is no defect of the machine and fails nothing."""
    code = (
        "from datetime import date; from infra.catalog.book import BOOK; "
        f"day = date({today.year}, {today.month}, {today.day}); "
        "print(len(BOOK.stale(day)), BOOK.summary(day))"
    )
    output = output_of(program("python") or sys.executable, "-c", code)
    if output is None:
        return Finding("price book", MISSING, "can't be read", "make setup")
    stale, _, summary = output.partition(" ")
    fix = "read them at their sources again, and write price and date into infra/catalog/prices.toml"
    return Finding("price book", OPTIONAL if int(stale) else OK, summary, fix if int(stale) else "")


def report(as_json: bool) -> int:
    """Print the table; return 1 if something that a test or a rehearsal needs is missing."""
    findings = [
        python(),
        *(() if INSTALLED else (packages(), go())),
        *programs(),
        *map(plugin, ("gcp", "kubernetes")),
        *(() if INSTALLED else (debian_packages(), *machine())),
        login(),
        catalog(),
        prices(date.today()),
    ]
    missing = [finding.what for finding in findings if finding.state == MISSING]
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings]))
        return 1 if missing else 0
    print(table(findings))
    after = "tpu plan ENV" if INSTALLED else "make rehearse"
    print(f"\n{len(missing)} missing: {', '.join(missing)}" if missing else f"\nall here; next: {after}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(report("--json" in sys.argv))
