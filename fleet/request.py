"""A command on an environment's slices, parsed once."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO


@dataclass(frozen=True)
class FleetCommand:
    """Values of a command line.

    Attributes:
        environment: the name in Pulumi.ENV.yaml.
        slices: only these items of `tpu:slices`; empty: all.
        zones: only members whose home zone is one of these; empty: all.
        workers_per_zone: only the first slices in each zone; None: all.
        adhoc: a fleet that the flags describe, as an item of `tpu:slices`.
        yes: skip the question.
        as_json: print one JSON document on standard output, messages on standard error.
        dry_run: show the changes, and make none.
        replace: `adhoc` takes an existing fleet over from another program.
    """

    environment: str
    slices: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    workers_per_zone: int | None = None
    adhoc: Mapping[str, Any] | None = None
    yes: bool = False
    as_json: bool = False
    dry_run: bool = False
    replace: bool = False

    @property
    def output(self) -> TextIO:
        """The stream for messages."""
        return sys.stderr if self.as_json else sys.stdout
