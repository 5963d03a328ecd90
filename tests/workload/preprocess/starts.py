"""Starts of `workload preprocess` in one process: their command lines, one JSON list a line of stdin.

PYTHON_WITH_SPARK -m tests.workload.preprocess.starts
"""

import json
import sys

from workload.__main__ import main

sys.stderr = sys.stdout  # errors between what else a start shows
for line in sys.stdin:
    print(f"status {main(['preprocess', *json.loads(line)])}", flush=True)
