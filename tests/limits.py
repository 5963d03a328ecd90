"""Time limit of waits in tests.

A wait ends when its condition holds, so the limit costs nothing unless the code hangs. It is long enough for
a machine that is busy with other work: tests must not measure load.
"""

HANG_S = 600.0
