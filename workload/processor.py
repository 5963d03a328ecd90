"""Kind of this processor, and JAX's platform on it, without slow imports."""

import hashlib
import importlib.util
import os
from pathlib import Path

GOOGLE = "0x1ae0"  # PCI vendor


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


def leave_tpu_out() -> None:
    """Select JAX's CPU platform on machines without accelerators, before JAX is imported.

    libtpu, which preflight needs, prints long warnings without a TPU. A host of a slice has $TPU_NAME and,
    unless it is rehearsed, libtpu: it must fail rather than train on its CPU.
    """
    gpus = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
    if os.environ.get("TPU_NAME"):
        if importlib.util.find_spec("libtpu"):
            os.environ.setdefault("JAX_PLATFORMS", "tpu,cpu")
        return
    if any(map(os.path.exists, gpus)):
        return
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    if all(vendor.read_text().strip() != GOOGLE for vendor in vendors):
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
