"""Kind of this processor, without slow imports."""

import hashlib
from pathlib import Path


def key() -> str | None:
    """Return a digest of the instruction set that compiled programs may use; None if unknown.

    JAX's cache key of a compiled step doesn't include it.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return None
    instructions = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(instructions.encode()).hexdigest()[:16]
