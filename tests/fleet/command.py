"""The command line of `tpu fleet`, in process."""

from collections.abc import Sequence

from cli.__main__ import main


def fleet(words: Sequence[str]) -> int:
    """Run `tpu fleet` with these words; the exit status."""
    return main(["fleet", *words])
