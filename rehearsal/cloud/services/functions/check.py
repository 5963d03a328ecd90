"""Check of a function's requirements: takes the path of a requirements.txt, prints those that aren't met.

Run by the Python that functions run with, which has the packages of the rehearsal and no way to an index.
"""

import importlib.metadata
import sys
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement


def missing(line: str) -> str:
    """Return the reason why a requirement isn't met; empty if it is."""
    try:
        needed = Requirement(line)
        if needed.marker is not None and not needed.marker.evaluate():
            return ""
        installed = importlib.metadata.version(needed.name)
    except InvalidRequirement as error:
        return f"{line}: {error}"
    except importlib.metadata.PackageNotFoundError:
        return f"{line}: not installed"
    return (
        "" if needed.specifier.contains(installed, prereleases=True) else f"{line}: {installed} is installed"
    )


def main() -> int:
    """Return the exit status: 1 where something is missing."""
    path = Path(sys.argv[1])
    lines = path.read_text().replace("\\\n", " ").splitlines() if path.exists() else []
    plain = [line.partition("#")[0].partition("--hash")[0].strip() for line in lines]
    problems = [why for line in plain if line and not line.startswith("-") and (why := missing(line))]
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
