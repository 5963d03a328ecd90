"""The machines' disk image: a Debian root with systemd, sshd and what a TPU VM's guest environment does.

Built once with debootstrap and cached by content: the recipe in this module and the files under
`rootfs/`. Every machine uses the same image read-only, under a writable layer of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from inspect import getsource
from pathlib import Path

from rehearsal.hosts.commands import run
from rehearsal.hosts.errors import HostError

SUITE = "bookworm"
# The account that people log in with, as OS Login would name it, and another without the right to sudo.
LOGIN = "engineer"
LOGIN_ID = 1000
SECOND_LOGIN, SECOND_LOGIN_ID = "researcher", 1001

# What a TPU VM's image has and our hosts use. No Python: an interpreter comes with the workload.
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "iproute2", "iputils-ping", "netbase"),
    *("ca-certificates", "curl", "fuse3", "procps", "psmisc", "kmod", "less"),
    *("podman", "crun", "catatonit", "netavark"),  # under the imitation of Docker, usr/bin/docker
    "sshfs",  # under the imitation of NFS, usr/sbin/mount.nfs
    # Shared libraries of a packed CPython and its wheels.
    *("libssl3", "libffi8", "libsqlite3-0", "libbz2-1.0", "liblzma5", "libreadline8", "zlib1g"),
    *("libncursesw6", "libuuid1", "libexpat1", "libgomp1", "libstdc++6"),
)

# Units that have no work to do on a machine that lives for minutes. Without them 64 boot in the time of 10.
MASKED = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer"),
    *("e2scrub_reap.service", "fstrim.timer", "systemd-tmpfiles-clean.timer", "systemd-pstore.service"),
    *("console-getty.service", "getty.target", "systemd-firstboot.service", "systemd-update-utmp.service"),
    *("systemd-update-utmp-runlevel.service", "systemd-logind.service", "systemd-machine-id-commit.service"),
    *("podman.socket", "podman-auto-update.timer", "podman-restart.service"),
    *("systemd-journal-flush.service", "systemd-network-generator.service", "ldconfig.service"),
)
ENABLED = (
    *("systemd-networkd.service", "ssh.service"),
    *("google-startup-scripts.service", "google-shutdown-scripts.service"),
)

_ROOTFS = Path(__file__).with_name("rootfs")


def ensure_image(cache: Path, report: Callable[[str], None] = lambda line: None) -> Path:
    """Return the image's root folder in `cache`; built first if this version is missing (about a minute).

    `report` receives a line before work that takes long. Needs root and debootstrap.
    """
    root = cache / f"image-{_key()}"
    if root.is_dir():
        with contextlib.suppress(PermissionError):
            os.utime(root)  # newest of all, so that nobody prunes it until a world claims it
        return root
    if os.geteuid() != 0:
        raise HostError(f"the machines' image {root} is not there yet", "run this as root, which builds it")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.is_dir():
            report("building the machines' image (once, about a minute)")
            _build(root)
            prune(cache)
    return root


def claim(image: Path) -> int:
    """Return an open descriptor that keeps the image from being pruned while it, or this process, lives."""
    descriptor = os.open(image, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def prune(cache: Path) -> None:
    """Remove all images but the two newest (built or used) and those that a world uses: each is 200 MB.

    And what interrupted builds left; no build may be running.
    """
    for partial in cache.glob("image-*.partial"):
        shutil.rmtree(partial)
    images = [path for path in cache.glob("image-*") if path.is_dir() and not path.is_symlink()]
    for image in sorted(images, key=lambda path: path.stat().st_mtime)[:-2]:
        descriptor = os.open(image, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(image)
        finally:
            os.close(descriptor)


def _key() -> str:
    """Names the image by everything that goes into it."""
    people = (LOGIN, LOGIN_ID, SECOND_LOGIN, SECOND_LOGIN_ID)
    recipe = (SUITE, people, PACKAGES, MASKED, ENABLED, getsource(_build), getsource(_furnish))
    digest = hashlib.sha256(repr(recipe).encode())
    for path in _our_files():
        digest.update(f"{path.relative_to(_ROOTFS)}\0{_mode(path):o}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _our_files() -> list[Path]:
    return sorted(path for path in _ROOTFS.rglob("*") if path.is_file())


def _mode(path: Path) -> int:
    """Return the file's mode in the image; a checkout's own depends on its umask."""
    if path.parent.name == "sudoers.d":  # sudo refuses files that can be written
        return 0o440
    return 0o755 if path.stat().st_mode & 0o100 else 0o644


def _build(root: Path) -> None:
    partial = root.with_name(f"{root.name}.partial")
    log = root.with_name(f"{root.name}.log")
    shutil.rmtree(partial, ignore_errors=True)
    log.unlink(missing_ok=True)
    # In namespaces of its own, which end with us: it mounts /proc and /sys and would leave them if killed.
    alone = (
        *("setpriv", "--pdeathsig", "KILL", "--"),
        *("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"),
    )
    options = ("--variant=minbase", f"--include={','.join(PACKAGES)}")
    run([*alone, "debootstrap", *options, SUITE, partial, find_mirror()], log=log)
    _furnish(partial, log)
    partial.rename(root)
    log.unlink()


def _furnish(root: Path, log: Path) -> None:
    """Lay our files over the fresh root and make it a machine that many copies of can boot."""
    for path in _our_files():
        target = root / path.relative_to(_ROOTFS)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        target.chmod(_mode(path))
    # As OS Login does it: an account whose right to sudo comes from a group.
    run(["chroot", root, "groupadd", "--gid", str(LOGIN_ID), "google-sudoers"], log=log)
    run(["chroot", root, "groupadd", "--gid", str(SECOND_LOGIN_ID), SECOND_LOGIN], log=log)
    for name, number in ((LOGIN, LOGIN_ID), (SECOND_LOGIN, SECOND_LOGIN_ID)):
        account = ["--create-home", "--shell", "/bin/bash", "--uid", str(number), "--gid", str(number)]
        run(["chroot", root, "useradd", *account, name], log=log)
    # As OS Login does it: whoever has no home gets one at login, as on a /home that another machine serves.
    run(["chroot", root, "pam-auth-update", "--enable", "mkhomedir"], log=log)
    run(["systemctl", f"--root={root}", "mask", *MASKED], log=log)
    run(["systemctl", f"--root={root}", "enable", *ENABLED], log=log)
    run(["systemctl", f"--root={root}", "set-default", "multi-user.target"], log=log)
    (root / "etc/machine-id").write_text("")  # each machine gets its own at first boot
    (root / "etc/hostname").unlink(missing_ok=True)
    (root / "etc/resolv.conf").write_text("# Names come from /etc/hosts: there is no way out of here.\n")
    (root / "var/lib/dbus/machine-id").unlink(missing_ok=True)
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
    shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)


def find_mirror(apt: Path = Path("/etc/apt")) -> str:
    """Return the Debian mirror of this machine's apt for the image's suite; HostError if there is none."""
    files = [apt / "sources.list", *sorted(apt.glob("sources.list.d/*"))]
    for path in filter(Path.is_file, files):
        text = path.read_text()
        mirror = _deb822_mirror(text) if path.suffix == ".sources" else _one_line_mirror(text)
        if mirror:
            return mirror
    fix = f"write `deb <your mirror> {SUITE} main` into {apt}/sources.list.d/{SUITE}.list"
    raise HostError(f"no apt source for Debian {SUITE} on this machine", fix)


def _deb822_mirror(text: str) -> str | None:
    for stanza in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, re.MULTILINE))
        offers = SUITE in fields.get("Suites", "").split() and "main" in fields.get("Components", "").split()
        if offers and fields.get("Enabled", "yes") != "no":
            return str(fields["URIs"]).split()[0]
    return None


def _one_line_mirror(text: str) -> str | None:
    line = re.compile(rf"^deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+{SUITE}\s+(?:\S+\s+)*main\b", re.MULTILINE)
    match = line.search(text)
    return match.group(1) if match else None
