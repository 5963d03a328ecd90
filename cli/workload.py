"""`tpu workload`, `tpu preflight`: the workload's own parser, which hosts run with few packages."""

from cli.command import Forwarded


def _workload(words: list[str], program: str = "tpu workload") -> int:
    from workload.__main__ import main

    return main(words, program)


workload = Forwarded("workload", _workload)
preflight = Forwarded("preflight", lambda words: _workload(["preflight", *words], "tpu"))
