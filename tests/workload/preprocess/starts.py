"""Starts of `workload preprocess` in one process: their command lines, one JSON list a line of stdin.

PYTHON_WITH_SPARK -m tests.workload.preprocess.starts
"""

import json
import sys

from workload.__main__ import main

for line in sys.stdin:
    status = main(["preprocess", *json.loads(line)])
    print(f"status {status}", flush=True)
    if status:
        sys.exit(status)
