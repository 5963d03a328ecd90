"""Fills a world's folder before its birth: program, certificates, login, plugins, the cloud's settings."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rehearsal import authority
from rehearsal.cloud.control import Control
from rehearsal.cloud.iam import iam
from rehearsal.errors import WorldError
from rehearsal.hosts.image import ensure_image
from rehearsal.kubernetes.errors import KubernetesError
from rehearsal.kubernetes.plane import programs
from rehearsal.providers.gcp.install import PACKAGES, Package, is_standin
from rehearsal.world import names, person, runtimes
from rehearsal.world.checkout import change_settings, copy_program, read_settings, run
from rehearsal.world.console import Narrator
from rehearsal.world.layout import Layout, cache_dir
from rehearsal.world.snapshot import Text, snapshot_image


@dataclass(frozen=True)
class Plan:
    """Properties of a world to make."""

    environment: str = "dev"  # whose settings hold
    cloud: Mapping[str, Any] = field(default_factory=dict)  # of its configuration: clock, lags, tokens
    seed: int = 0  # of everything random in the cloud
    plugins: Path | None = None  # folder with official plugins
    text: Text = field(default_factory=Text)  # what the data snapshot holds
    settings: Mapping[str, object] = field(default_factory=dict)  # laid over the environment's file
    control_planes: bool = False  # whether clusters have them, where their programs are built
    runtimes: tuple[str, ...] = ()  # of Google's services, where people's code runs: spark, functions
    locks: tuple[str, ...] = ()  # bundles to build outside, where the package registries can be reached
    prepare: tuple[str, ...] = ()  # commands that fill caches there


def make(layout: Layout, plan: Plan, narrator: Narrator) -> dict[str, str]:
    """Write everything; the environment variables of every process that will live in the world."""
    layout.marker.touch()
    for folder in (layout.home, layout.stacks, layout.pulumi_home, layout.cloud):
        folder.mkdir(parents=True, exist_ok=True)
    with narrator.step("copy the program") as note:
        note.text = f"{copy_program(layout.program)} files"
    users = [iam.member(who) for who in person.PEOPLE.values()]
    copy = {"fleet:ssh": person.SSH, "storage:serviceAccountUsers": users}
    change_settings(layout.program, plan.environment, {**copy, **plan.settings})
    settings = read_settings(layout.program, plan.environment)
    project = settings.get("gcp:project")
    if not isinstance(project, str):
        raise WorldError(f"Pulumi.{plan.environment}.yaml has no gcp:project", "set gcp:project there")
    if settings.get("data:snapshot"):
        with narrator.step("the data disk's snapshot, from text on this machine") as note:
            note.text = snapshot_image(plan.text).name
    with narrator.step("machine image, certificates, login, plugins") as note:
        image = ensure_image(cache_dir(), narrator.line)
        tls = authority.issue(layout.tls, names.CERTIFICATE_NAMES, [names.FRONT_DOOR])
        tokens = {account: secrets.token_urlsafe(24) for account in person.LOGINS}
        for account, token in tokens.items():
            # gcloud writes it for people, and CI logs in otherwise.
            person.write_login(layout.home, account, token, "" if account == "ci" else project)
        public_key = person.write_ssh(layout.home)
        (layout.root / "hosts").write_text(names.hosts_file())
        (layout.root / "resolv.conf").write_text("# No name servers: there is no way out of this world.\n")
        environment = person.environment(layout, project)
        _require_programs(environment)
        note.text = install_plugins(layout, plan.plugins, environment)
        environment["REHEARSAL_PLUGIN"] = note.text
        kubernetes = control_plane_programs(narrator) if plan.control_planes else None
        person.write_programs(layout, kubernetes)
        if kubernetes:
            _write_kubernetes_config(layout, image, tls)
    for name in plan.runtimes:
        with narrator.step(f"the Python of the runtime `{name}`") as note:
            note.text = str(runtimes.ensure(name, cache_dir(), narrator.line))
    for lock in plan.locks:
        with narrator.step(f"download what the bundle `{lock}` is made of"):
            # Out here: inside, there is no way to a package registry.
            line = [sys.executable, "-m", "cli", "publish", plan.environment, "--lock", lock, "--dry-run"]
            run(line, layout.program)
    for text in plan.prepare:
        with narrator.step(f"outside: $ {text}"):
            run(shlex.split(text), layout.program)
    _write_cloud_config(layout, plan, project, image, tls, tokens, public_key)
    return environment


def control_plane_programs(narrator: Narrator) -> Path | None:
    """Return the folder of the control plane's programs; print a line if they are missing."""
    try:
        programs.folder(programs.QUEUE)
        return programs.folder(programs.KUBERNETES)
    except KubernetesError as missing:
        narrator.line(f"      clusters have no control planes here: {missing} (fix: {missing.fix})")
        return None


def _write_kubernetes_config(layout: Layout, image: Path, tls: authority.TlsFiles) -> None:
    document = {
        "control": layout.control,
        "folder": layout.clusters,
        "certificate": tls.certificate,
        "key": tls.key,
        "hosts_file": layout.root / "hosts",
        "ca_bundle": tls.bundle,
        "debian": image,
        "images": layout.images,
    }
    layout.kubernetes_config.write_text(json.dumps({key: str(path) for key, path in document.items()}))


def _people(layout: Layout, plan: Plan, tokens: Mapping[str, str]) -> dict[str, object]:
    """Return each account's roles as the program documents them; the stacks grant who may act as whom."""
    command = [sys.executable, "-m", "cli", "infra", "roles", plan.environment, "--json"]
    granted = json.loads(run(command, layout.program))
    return {
        person.PEOPLE[account]: {
            "refresh_token": tokens[account],
            "roles": [[role, on] for role, on in roles if "/serviceAccounts/" not in on],
        }
        for account, roles in granted.items()
    }


def _require_programs(environment: dict[str, str]) -> None:
    """WorldError unless the pinned programs are on the PATH of the world."""
    programs = ("pulumi", "gcsfuse", "git", "ssh")
    missing = [name for name in programs if shutil.which(name, path=environment["PATH"]) is None]
    if missing:
        raise WorldError(f"not installed: {', '.join(missing)}", "make setup, then make doctor")


def _runtime(plan: Plan, name: str) -> str:
    """Return the interpreter of a runtime in the plan, which was made before."""
    return str(runtimes.ensure(name, cache_dir())) if name in plan.runtimes else ""


def seed(layout: Layout, plan: Plan) -> None:
    """Put the snapshot that the settings name into the cloud that has just started."""
    snapshot = read_settings(layout.program, plan.environment).get("data:snapshot")
    if isinstance(snapshot, str):
        name = snapshot.rpartition("/")[2]
        Control(layout.control).add_snapshot(name, snapshot_image(plan.text), disk_size_gb=10)


def install_plugins(layout: Layout, named: Path | None, environment: dict[str, str]) -> str:
    """Link official plugins into the world's Pulumi home, install stand-ins for the rest; which, in words."""
    user_home = Path(os.environ.get("PULUMI_HOME", Path.home() / ".pulumi"))
    plugins = named or user_home / "plugins"
    official = [package for package in PACKAGES.values() if _is_official(plugins, package)]
    if named and not official:
        desired = " or ".join(package.folder for package in PACKAGES.values())
        raise WorldError(
            f"{named} holds no official {desired}",
            "it should contain such folders, as ~/.pulumi/plugins does after a `pulumi up`",
        )
    for package in official:
        # A folder of our own with links in it: the CLI passes over a plugin's folder that is itself a link.
        linked = layout.pulumi_home / "plugins" / package.folder
        linked.mkdir(parents=True)
        for file in (plugins / package.folder).resolve().iterdir():
            (linked / file.name).symlink_to(file)
    rest = [name for name, package in PACKAGES.items() if package not in official]
    words = [f"official plugin {package.folder}" for package in official]
    if rest:
        line = [sys.executable, "-m", "rehearsal.providers.gcp", "install", *rest]
        command = [*line, "--pulumi-home", str(layout.pulumi_home)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, cwd=layout.program
        )
        if done.returncode != 0:
            raise WorldError(f"the stand-in plugins can't be installed: {done.stderr.strip()[-600:]}")
        words.append(f"stand-in for {' and '.join(rest)}")
    return ", ".join(words)


def _is_official(plugins: Path, package: Package) -> bool:
    executable = plugins / package.folder / package.executable
    return executable.is_file() and not is_standin(executable)


def _write_cloud_config(
    layout: Layout,
    plan: Plan,
    project: str,
    image: Path,
    tls: authority.TlsFiles,
    tokens: Mapping[str, str],
    public_key: Path,
) -> None:
    document = {
        "project": project,
        "directory": str(layout.cloud),
        "control": str(layout.control),
        "certificate": str(tls.certificate),
        "key": str(tls.key),
        "ca_certificate": str(tls.ca),
        "ca_bundle": str(tls.bundle),
        "image": str(image),
        "hosts_file": str(layout.root / "hosts"),
        "owner": person.OWNER,
        "refresh_token": tokens["owner"],
        "people": _people(layout, plan, tokens),
        "ssh_public_key": public_key.read_text(),
        **plan.cloud,
        "seed": plan.seed,
        "control_planes": layout.kubernetes_config.exists(),
        "builder": person.builder(layout, project),
        "spark_python": _runtime(plan, "spark"),
        "function_python": _runtime(plan, "functions"),
    }
    layout.cloud_config.write_text(json.dumps(document, indent=1))
    layout.cloud_config.chmod(0o600)
