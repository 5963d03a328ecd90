"""Carries out a Dockerfile, since no container engine runs here: a bare Debian stands for its base image.

python -m rehearsal.kubernetes.node.docker FOLDER --tag NAME     (typed in a world; prints NAME@sha256:…)

It knows FROM, LABEL, RUN with bind mounts, ENV, WORKDIR and ENTRYPOINT; RUN has no network. The digest is of
the Dockerfile and of the files that it mounts, not an image manifest's.
https://docs.docker.com/reference/dockerfile/
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rehearsal.errors import RehearsalError
from rehearsal.kubernetes.errors import KubernetesError
from rehearsal.kubernetes.node.sandbox import Image

_LAYER, _FACTS = "layer", "image.json"
_KNOWN = ("FROM", "LABEL", "RUN", "ENV", "WORKDIR", "ENTRYPOINT")


@dataclass(frozen=True)
class Dockerfile:
    """Parsed Dockerfile: `runs` are commands, each with its bind mounts (source → target)."""

    runs: tuple[tuple[str, Mapping[str, str]], ...]
    environment: Mapping[str, str]
    entrypoint: tuple[str, ...]

    @staticmethod
    def read(text: str) -> Dockerfile:
        """Parse a Dockerfile. Raises KubernetesError for an unsupported instruction."""
        runs: list[tuple[str, Mapping[str, str]]] = []
        environment: dict[str, str] = {}
        entrypoint: tuple[str, ...] = ()
        for line in filter(None, text.splitlines()):
            key, _, value = line.partition(" ")
            if key not in _KNOWN:
                raise KubernetesError(f"the instruction {key} isn't carried out here")
            if key == "RUN":
                runs.append(_run(value))
            elif key == "ENV":
                name, _, content = value.partition("=")
                environment[name] = content
            elif key == "ENTRYPOINT":
                entrypoint = tuple(json.loads(value))
        return Dockerfile(tuple(runs), environment, entrypoint)


def _run(value: str) -> tuple[str, Mapping[str, str]]:
    mounts: dict[str, str] = {}
    while value.startswith("--"):
        flag, _, value = value.partition(" ")
        parts = dict(part.split("=", 1) for part in flag.removeprefix("--mount=").split(","))
        if not flag.startswith("--mount=") or parts.get("type") != "bind":
            raise KubernetesError(f"RUN {flag} isn't carried out here")
        mounts[parts["source"]] = parts["target"]
    return value, mounts


def digest(context: Path, dockerfile: Dockerfile, text: str) -> str:
    """Of the instructions and all files that they mount, as hex."""
    match = hashlib.sha256(text.encode())
    for _, mounts in dockerfile.runs:
        for source in mounts:
            for path in sorted(path for path in (context / source).rglob("*") if path.is_file()):
                match.update(
                    f"{path.relative_to(context)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
                )
    return match.hexdigest()


def build(context: Path, base: Path, images: Path) -> str:
    """Build the image of a context over the root `base`, into `images`, once; its digest as hex.

    Raises:
        KubernetesError: a RUN failed, with what it printed, or something isn't carried out here.
    """
    text = (context / "Dockerfile").read_text(encoding="utf-8")
    dockerfile = Dockerfile.read(text)
    name = digest(context, dockerfile, text)
    done = images / name
    if done.is_dir():
        return name
    images.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=images))
    try:
        for command, mounts in dockerfile.runs:
            _carry_out(command, {context / source: target for source, target in mounts.items()}, base, place)
        shutil.rmtree(place / "work", ignore_errors=True)
        facts = {"environment": dockerfile.environment, "entrypoint": dockerfile.entrypoint}
        (place / _FACTS).write_text(json.dumps(facts))
        place.rename(done)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    return name


def _carry_out(command: str, mounts: Mapping[Path, str], base: Path, place: Path) -> None:
    """Run a RUN command in its own namespaces; its changes are in `place`/layer afterwards."""
    root = place / "root"
    for part in (root, place / _LAYER, place / "work"):
        part.mkdir(exist_ok=True)
    layers = f"lowerdir={base},upperdir={place / _LAYER},workdir={place / 'work'}"
    lines = [f"mount -t overlay -o {shlex.quote(layers)} overlay {root}"]
    for source, target in mounts.items():
        where = shlex.quote(f"{root}{target}")
        lines += [f"mkdir -p {where}", f"mount --bind -o ro {shlex.quote(str(source.resolve()))} {where}"]
    lines += [
        f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev",
        f"exec chroot {root} env -i PATH=/usr/bin:/bin /bin/sh -c {shlex.quote(command)}",
    ]  # fmt: skip
    line = ["unshare", "--net", "--mount", "--pid", "--fork", "bash", "-c", " && ".join(lines)]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise KubernetesError(f"RUN {command} ended with status {ended.returncode}: {ended.stderr[-2000:]}")


def find_built(images: Path, name: str, base: Path) -> Image | None:
    """Return the built image of a name's digest; None if there is none."""
    place = images / name.rpartition("@sha256:")[2]
    if "@sha256:" not in name or not (place / _FACTS).is_file():
        return None
    facts = json.loads((place / _FACTS).read_text())
    return Image(
        root=base,
        layers=(place / _LAYER,),
        command=tuple(facts["entrypoint"]),
        environment=facts["environment"],
    )


def main() -> int:
    """Build in the world that this is typed in."""
    parser = argparse.ArgumentParser(prog="python -m rehearsal.kubernetes.node.docker", description=__doc__)
    parser.add_argument("folder", type=Path, help="the context, with its Dockerfile")
    parser.add_argument("--tag", required=True, help="repository that it would be pushed to")
    arguments = parser.parse_args()
    config = json.loads(Path(os.environ["REHEARSAL_WORLD"], "kubernetes.json").read_text())
    try:
        built = build(arguments.folder, Path(config["debian"]), Path(config["images"]))
    except (RehearsalError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.tag}@sha256:{built}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
