"""Programs of a machine of the cluster: `python -m slurm boot|keep|logs ROLE`.

Exit status: 0 done · 1 failed · 2 usage · 75 failed, and may succeed a little later.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from infra.errors import InfraError
from infra.layers.slurm import names
from slurm import boot, daemon, logs
from slurm.machine import Metadata
from slurm.system import System

TRY_AGAIN = 75
"""Status after which the start-up script tries again (infra/layers/tpu/startup/parts/prelude.sh)."""


def main(arguments: Sequence[str]) -> int:
    """Run a program; return the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    if len(arguments) != 2 or arguments[0] not in ("boot", "keep", "logs") or arguments[1] not in names.ROLES:
        print(f"usage: python -m slurm boot|keep|logs {'|'.join(names.ROLES)}", file=sys.stderr)
        return 2
    program, role = arguments
    try:
        if program == "boot":
            boot.boot(role, Metadata(), System())
        elif program == "keep":
            daemon.run(role, Metadata(), System())
        else:
            logs.run()
    except InfraError as error:
        # One line: the machine's status holds the last one.
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return TRY_AGAIN if program == "boot" else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
