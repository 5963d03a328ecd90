"""Entry point of a scenario inside a world: python -m rehearsal.scenario SCENARIO --seed N --report DIR."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from rehearsal.errors import RehearsalError
from rehearsal.scenario.report import write_report
from rehearsal.scenario.report.table import print_report
from rehearsal.scenario.runner import Runner
from rehearsal.scenario.scenario import load
from rehearsal.world.console import Narrator
from rehearsal.world.layout import Layout


def interrupt_once(signum: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt and ignore further signals, so that none interrupts the writing of the
    report.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        # Not SIG_IGN: of a signal that is already under way Python would complain with a traceback.
        signal.signal(number, lambda signum, frame: None)
    raise KeyboardInterrupt


def main() -> int:
    """Run the scenario, write the report and print its path; return 0 if the scenario passed."""
    parser = argparse.ArgumentParser(prog="python -m rehearsal.scenario")
    parser.add_argument("scenario", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--report", type=Path, required=True)
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt_once)
    layout = Layout(Path(os.environ["REHEARSAL_WORLD"]))
    narrator = Narrator()
    try:
        scenario = load(arguments.scenario, arguments.seed)
        runner = Runner(scenario, layout, arguments.report, narrator)
        runner.record.plugin = os.environ.get("REHEARSAL_PLUGIN", "")
        record = runner.act()
        page = write_report(record, arguments.report)
    except RehearsalError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print_report(record, narrator.console)
    narrator.line(f"report: {page}")
    return {"passed": 0, "interrupted": 130}.get(record.verdict, 1)


if __name__ == "__main__":
    sys.exit(main())
