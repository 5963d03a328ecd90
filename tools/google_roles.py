"""Writes google_facts/roles.toml, Google's predefined roles and their permissions, from a public list.

    git clone https://github.com/iann0036/iam-dataset; python -m tools.google_roles iam-dataset

Of roles, those that are named somewhere here or in the table before; of permissions, those of the resources
that are. A pattern of a
role stands for what `[permissions]` has: `tpu.*`, `tpu.nodes.*`, `tpu.nodes.get+list`.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast

from google_facts import roles, table
from rehearsal.cloud.cloud import Cloud
from rehearsal.cloud.config import CloudConfig

if TYPE_CHECKING:
    from rehearsal.hosts.machine import Hosts

ROOT = Path(__file__).resolve().parents[1]
_FOLDERS = ("benchmarks", "cli", "fleet", "infra", "pipeline", "rehearsal", "workload")
_ROLE = re.compile(r"roles/[a-zA-Z0-9]+(?:\.[a-zA-Z0-9]+)*")
_PERMISSION = re.compile(r"\b([a-z]+\.[a-zA-Z]+)\.(?:[a-zA-Z]+|\*)")
# No custom role of a project takes these, but for those that its owner has:
# https://cloud.google.com/iam/docs/creating-custom-roles
_ABOVE_PROJECTS = (
    "billing.accounts.*", "billing.anomaliesConfigs.*", "billing.budgets.*", "billing.credits.*",
    "billing.resourceAssociations.*", "billing.subscriptions.*", "compute.organizations.*",
    "resourcemanager.folders.*", "resourcemanager.organizations.*", "resourcemanager.projects.create",
)  # fmt: skip
_URL = "https://github.com/iann0036/iam-dataset/tree/{}/gcp/roles"


def main(dataset: Path) -> None:
    """Write the table."""
    commit = _git(dataset, "rev-parse", "HEAD")
    archive = _git(dataset, "ls-tree", "-r", "--name-only", "HEAD", "gcp/roles").splitlines()
    documents = [json.loads(_git(dataset, "show", f"HEAD:{path}")) for path in archive]
    held = {item["name"]: frozenset(item.get("includedPermissions", ())) for item in documents}
    texts = [path.read_text() for folder in _FOLDERS for path in (ROOT / folder).rglob("*.py")]
    used = {name for text in texts for name in _ROLE.findall(text)} & held.keys()
    used |= table("roles")["roles"].keys() & held.keys()
    named = {resource for text in texts for resource in _PERMISSION.findall(text)}
    named |= {name.rpartition(".")[0] for name in (*_emulated(), *roles.permissions())}
    every = frozenset().union(*held.values())
    known = {name for name in every if name.rpartition(".")[0] in named}
    services = sorted({name.partition(".")[0] for name in known})
    head = [f'source = "{_URL.format(commit)}"', f'read = "{datetime.datetime.now(datetime.UTC).date()}"']
    lines = ["# Predefined roles and their permissions. Written by tools/google_roles.py.", ""]
    lines += ["[permissions]", *head, *(_line(service, [*_written(known, service)]) for service in services)]
    lines += ["", "[names]", *head]
    for service in services:
        own = [name.partition(".")[2] for name in held if name.startswith(f"roles/{service}.")]
        lines.append(_line(service, sorted(own)))
    lines += ["", "[roles]", *head]
    shown = (name for name in sorted(used) if "." not in name or name[6:].partition(".")[0] in services)
    lines += [_line(f'"{name}"', _patterns(held[name] & known, known)) for name in shown]
    lines += ["", "[above_projects]", *head, f"patterns = {json.dumps(_ABOVE_PROJECTS)}"]
    (ROOT / "google_facts" / "roles.toml").write_text("\n".join(lines) + "\n")


def _emulated() -> frozenset[str]:
    """Return the permissions that methods of the emulated cloud require."""
    with TemporaryDirectory() as folder:
        where = Path(folder)
        config = CloudConfig("a-project", where, where / "control", "owner@example.com", "token")
        return frozenset(Cloud(config, cast("Hosts", None)).iam.permissions)


def _written(permissions: Iterable[str], service: str) -> Iterable[str]:
    """Yield `RESOURCE.verb+verb` of each resource of a service."""
    for resource, verbs in _by_resource(permissions).items():
        if resource.partition(".")[0] == service:
            yield f"{resource.partition('.')[2]}.{'+'.join(verbs)}"


def _patterns(permissions: frozenset[str], known: set[str]) -> list[str]:
    every = _by_resource(known)
    own = _by_resource(permissions)
    patterns: list[str] = []
    for service in sorted({resource.partition(".")[0] for resource in own}):
        of_service = [resource for resource in every if resource.partition(".")[0] == service]
        if all(own.get(resource) == every[resource] for resource in of_service):
            patterns.append(f"{service}.*")
            continue
        for resource in of_service:
            if verbs := own.get(resource):
                patterns.append(f"{resource}.{'*' if verbs == every[resource] else '+'.join(verbs)}")
    return patterns


def _by_resource(permissions: Iterable[str]) -> Mapping[str, list[str]]:
    verbs: dict[str, list[str]] = {}
    for name in sorted(permissions):
        resource, _, verb = name.rpartition(".")
        verbs.setdefault(resource, []).append(verb)
    return verbs


def _line(key: str, words: list[str]) -> str:
    return f'{key} = "{" ".join(words)}"'


def _git(folder: Path, *arguments: str) -> str:
    line = ["git", "-C", str(folder), *arguments]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
