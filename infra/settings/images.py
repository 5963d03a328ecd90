"""Container images of programs: those that hosts and nodes, without external addresses, may pull."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from google_facts import registries
from infra.errors import Problem
from infra.settings import rules


def refused(path: str, image: str, any_host: bool) -> Iterator[Problem]:
    """Yield the problem of an image on a command line: it has no digest, or isn't reached."""
    if rules.DIGEST.ok(image):
        yield from unreachable(path, image, any_host)
    else:
        yield Problem(path, f'"{image}"', f"must be {rules.DIGEST.text}", rules.DIGEST.fix)


def unreachable(path: str, image: str, any_host: bool) -> Iterator[Problem]:
    """Yield a problem if no registry of that host is reached; `any_host`: the network leads to all."""
    if not (any_host or registries.is_googles(image)):
        rule = "nodes have no external addresses, and reach Google's registries alone"
        cached = f"{registries.CACHE}/{image.removeprefix('docker.io/')}"
        fix = f"write {cached}, if Google has it there; else " * (registries.host(image) == "docker.io") + (
            "copy it to Artifact Registry (LOCATION-docker.pkg.dev/PROJECT/REPOSITORY/…), or add "
            "network:cloudNat: true"
        )
        yield Problem(path, f'"{image}"', rule, fix)


def undeclared(path: str, image: str, project: str, known: Sequence[str], up: str) -> Iterator[Problem]:
    """Yield the problem of an image in a repository of the project that hosts aren't let pull from.

    Of another project's its owner decides. `known`: storage:repositories; `up`: the command that grants.
    """
    place = registries.repository(image)
    if place and place.project == project and place.host_path not in known:
        rule = f"hosts pull from the repositories of storage:repositories: {', '.join(known) or 'none'}"
        yield Problem(path, f'"{image}"', rule, f"add {place.host_path} to storage:repositories, then {up}")
