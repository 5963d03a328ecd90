"""Recordings of a command's output with its times: written as an asciicast, drawn as an animated SVG.

https://docs.asciinema.org/manual/asciicast/v2/
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import IO

from rehearsal.errors import RehearsalError

COLUMNS, ROWS = 100, 24
_LONGEST_PAUSE_S = 0.5  # of the drawing; what took longer is cut to that
_LAST_S = 6.0  # how long the end stays
_MOST_LINES = 120
_LINE, _CHARACTER = 18, 7.85  # of a 13 px monospaced font, in px
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STYLE = """
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
       white-space: pre; fill: #d6dee6 }
.job { fill: #8fa1b3 } .lost { fill: #f2b457 } .fine { fill: #7bd88f } 
.typed { fill: #ffffff; font-weight: 600 }
"""


def follow(source: IO[bytes], log: IO[bytes], cast: IO[str], command: str) -> threading.Thread:
    """Copy a command's output to a log, and with times to an asciicast; the thread that does so."""
    began = time.monotonic()
    header = {
        "version": 2,
        "width": COLUMNS,
        "height": ROWS,
        "timestamp": int(time.time()),
        "command": command,
    }
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
    lines = lines[-_MOST_LINES:]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(_svg(_shortened(lines), _title(header))), "utf-8")


def _lines(events: list[list[object]]) -> Iterator[tuple[float, str]]:
    """Each whole line, and when it was there; of one that is drawn over, the last."""
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


def _svg(lines: list[tuple[float, str]], title: str) -> Iterator[str]:
    width, height = round(COLUMNS * _CHARACTER) + 32, ROWS * _LINE + 52
    total_s = lines[-1][0] + _LAST_S

    def percent(at_s: float) -> str:
        return f"{100 * at_s / total_s:.2f}%"

    rules, shifts = [], []
    for number, (at_s, _) in enumerate(lines):
        hidden, shown_at = percent(at_s), percent(at_s + 0.02)
        rules.append(f"@keyframes l{number} {{ 0%, {hidden} {{ opacity: 0 }} {shown_at} {{ opacity: 1 }} }}")
        if number >= ROWS:
            shifts.append(f"{percent(at_s)} {{ transform: translateY({(ROWS - 1 - number) * _LINE}px) }}")
    last = max(0, len(lines) - ROWS) * -_LINE
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img"><title>{escape(title)}</title><style>{_STYLE}'
        f".all {{ transform: translateY({last}px) }}"
        "@media (prefers-reduced-motion: no-preference) {"
        f".all {{ animation: up {total_s:.1f}s step-end infinite }}"
        f".all text {{ animation-duration: {total_s:.1f}s; animation-iteration-count: infinite; opacity: 1 }}"
        f"@keyframes up {{ 0% {{ transform: none }} {' '.join(shifts)} }} {''.join(rules)} }}</style>"
        f'<clipPath id="screen"><rect x="0" y="36" width="{width}" height="{height - 42}"/></clipPath>'
        f'<rect width="{width}" height="{height}" rx="10" fill="#1b232c"/>'
        '<circle cx="20" cy="18" r="5" fill="#e0645c"/><circle cx="38" cy="18" r="5" fill="#e5b64a"/>'
        '<circle cx="56" cy="18" r="5" fill="#64b65a"/>'
        '<g clip-path="url(#screen)"><g class="all">'
    )
    for number, (_, text) in enumerate(lines):
        shown = text if len(text) <= COLUMNS else f"{text[: COLUMNS - 1]}…"
        yield (
            f'<text class="{_class(text)}" x="16" y="{50 + number * _LINE}" '
            f'style="animation-name: l{number}">{escape(shown)}</text>'
        )
    yield "</g></g></svg>\n"


def _class(text: str) -> str:
    if text.startswith("$ "):
        return "typed"
    if text.startswith("  | "):
        return "job"
    if "PREEMPTED" in text or "recovering" in text:
        return "lost"
    return "fine" if re.search(r"\bworking$|\bdone\b|is deleted", text) else "said"


def _title(header: dict[str, object]) -> str:
    return f"recording of: {header['command']}"
