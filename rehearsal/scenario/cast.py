"""Recordings of a command's output with its times: written as an asciicast, drawn as an animated SVG.

https://docs.asciinema.org/manual/asciicast/v2/
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rehearsal.errors import RehearsalError
from views.page import render

COLUMNS, ROWS = 100, 24
_LONGEST_PAUSE_S = 0.5  # of the drawing; what took longer is cut to that
_LAST_S = 6.0  # how long the end stays
_MOST_LINES = 120
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def follow(
    source: IO[bytes], log: IO[bytes], cast: IO[str], command: str, title: str = ""
) -> threading.Thread:
    """Copy a command's output to a log, and with times to an asciicast; the thread that does so."""
    began = time.monotonic()
    size = {"width": COLUMNS, "height": ROWS}
    header = {"version": 2, **size, "timestamp": int(time.time()), "command": command, "title": title}
    cast.write(json.dumps(header) + "\n")

    def copy() -> None:
        with source, log, cast:
            while chunk := source.read1(65536):  # type: ignore[attr-defined]
                log.write(chunk)
                log.flush()
                event = [round(time.monotonic() - began, 3), "o", chunk.decode(errors="replace")]
                cast.write(json.dumps(event) + "\n")
                cast.flush()

    thread = threading.Thread(target=copy, name="cast", daemon=True)
    thread.start()
    return thread


def draw(cast: Path, out: Path) -> None:
    """Draw an asciicast as an SVG that plays by itself: long pauses are shortened, long lines cut.

    Raises RehearsalError where the file is no recording.
    """
    try:
        header, *events = map(json.loads, cast.read_text("utf-8").splitlines())
        lines = [(0.0, f"$ {header['command']}"), *_lines(events)]
    except (ValueError, KeyError, TypeError) as error:
        raise RehearsalError(f"{cast} is no recording: {error}", "a .cast of rehearsal-report/logs") from None
    lines = _shortened(lines[-_MOST_LINES:])
    total_s = lines[-1][0] + _LAST_S
    out.parent.mkdir(parents=True, exist_ok=True)
    text = render(Path(__file__).with_name("cast.svg"), {
        "title": f"recording of: {header['command']}",
        "caption": header.get("title", ""),
        "total_s": total_s,
        "lines": [(100 * at_s / total_s, 100 * (at_s + 0.02) / total_s, text, _class(text))
                  for at_s, text in lines],
        "rows": ROWS,
        "columns": COLUMNS,
    })  # fmt: skip
    out.write_text(text, "utf-8")


def _lines(events: list[list[object]]) -> Iterator[tuple[float, str]]:
    """Yield the time and text of each whole line; of a line that is drawn over, the last text."""
    pending = ""
    for at_s, kind, text in events:
        if kind != "o":
            continue
        *whole, pending = (pending + str(text)).split("\n")
        for line in whole:
            yield float(str(at_s)), _ESCAPES.sub("", line.rstrip("\r").rpartition("\r")[2])


def _shortened(lines: list[tuple[float, str]]) -> list[tuple[float, str]]:
    shortened, now_s, before_s = [], 0.0, 0.0
    for at_s, text in lines:
        now_s += min(at_s - before_s, _LONGEST_PAUSE_S)
        before_s = at_s
        shortened.append((now_s, text))
    return shortened


def _class(text: str) -> str:
    if text.startswith("$ "):
        return "typed"
    if text.startswith("  | "):
        return "job"
    if "PREEMPTED" in text or "recovering" in text:
        return "lost"
    return "fine" if re.search(r"\bworking$|\bdone\b|is deleted", text) else "said"
