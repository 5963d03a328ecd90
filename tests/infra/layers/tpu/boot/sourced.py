"""Parts of the boot script in a plain bash: functions of (metadata, folder), without a machine."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

import infra.layers.tpu.startup as startup
from tests.limits import HANG_S

PARTS = Path(str(resources.files(startup) / "parts"))
# Waits take no time and alone move the script's clock on: an unset SECONDS is a variable as others are.
SLEEP = "unset SECONDS; SECONDS=0\nsleep() { SECONDS=$((SECONDS + ${1%.*})); }\n"


def bash(
    code: str,
    parts: Sequence[str] = ("prelude", "status", "runner"),
    paths: Mapping[str, object] | None = None,
    stdin: bytes = b"",
) -> subprocess.CompletedProcess[str]:
    """Run code after parts of the script, in which `paths` replace others."""
    sources = "\n".join((PARTS / f"{part}.sh").read_text() for part in parts)
    for old, new in (paths or {}).items():
        assert old in sources
        sources = sources.replace(old, str(new))
    done = subprocess.run(
        ["bash", "-c", f"{sources}\n{code}"], input=stdin, capture_output=True, check=False, timeout=HANG_S
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace")
    )


def printed(code: str, **more: bytes) -> str:
    """Return the output of code that must succeed."""
    done = bash(code, **more)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    return done.stdout


def metadata(attributes: Mapping[str, str | None], late: Mapping[str, tuple[int, str]]) -> str:
    """Return a stub of `metadata` with these attributes; `late` ones have a value from a second on."""
    cases = [
        f"instance/attributes/{key}) printf %s {shlex.quote(value)} ;;"
        for key, value in attributes.items()
        if value is not None and key not in late
    ]
    for key, (from_s, value) in late.items():
        before = attributes.get(key)
        absent = "return 1" if before is None else f"{{ printf %s {shlex.quote(before)}; return; }}"
        test = f"((SECONDS >= {from_s})) || {absent}"
        cases.append(f"instance/attributes/{key}) {test}; printf %s {shlex.quote(value)} ;;")
    known = "\n".join(cases)
    return f"metadata() {{ case $1 in instance/id) echo 4711 ;;\n{known}\n*) return 1 ;; esac; }}\n"
