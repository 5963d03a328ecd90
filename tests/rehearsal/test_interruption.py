"""A scenario that is asked to end twice at once: `timeout` and make each send a signal of their own."""

from __future__ import annotations

import subprocess
import sys

from rehearsal.world.checkout import TREE
from tests.limits import HANG_S

# Both are pending before either is handled, which is when Python looks at the handlers.
PROGRAM = """
import signal, threading
from rehearsal.scenario.__main__ import interrupt_once

both = signal.SIGINT, signal.SIGTERM
for number in both:
    signal.signal(number, interrupt_once)
signal.pthread_sigmask(signal.SIG_BLOCK, both)
for number in both:
    signal.pthread_kill(threading.get_ident(), number)
try:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted")
signal.raise_signal(signal.SIGTERM)
print("the report is written")
"""


def test_two_signals_at_once_interrupt_once_and_without_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=TREE, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\nthe report is written\n")
    assert done.stderr == ""
