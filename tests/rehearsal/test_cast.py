"""Recordings: what a command printed, with its times, and the picture that plays it."""

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rehearsal.errors import RehearsalError
from rehearsal.scenario import cast
from tests.limits import HANG_S

SCRIPT = (
    "import time; print('one', flush=True); time.sleep(0.5); print('two\\x1b[31m <&>\\x1b[0m', flush=True)"
)


def recorded(folder: Path) -> Path:
    path, log = folder / "run.cast", folder / "run.log"
    child = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE)
    assert child.stdout
    cast.follow(child.stdout, log.open("wb"), path.open("w"), "say two things").join(HANG_S)
    child.wait()
    assert log.read_text() == "one\ntwo\x1b[31m <&>\x1b[0m\n", "the log is as without a recording"
    return path


def test_a_recording_has_the_times_of_what_was_printed(tmp_path: Path) -> None:
    header, *events = map(json.loads, recorded(tmp_path).read_text().splitlines())
    assert (header["version"], header["command"]) == (2, "say two things")
    assert "".join(text for _, _, text in events) == "one\ntwo\x1b[31m <&>\x1b[0m\n"
    assert events[-1][0] - events[0][0] >= 0.4


def test_the_picture_shows_every_line_in_its_turn(tmp_path: Path) -> None:
    path, out = recorded(tmp_path), tmp_path / "new" / "run.svg"
    cast.draw(path, out)
    drawn = ElementTree.parse(out)
    texts = [item.text for item in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["$ say two things", "one", "two <&>"]
    style = next(drawn.iter("{http://www.w3.org/2000/svg}style")).text or ""
    shown = [float(at) for at in re.findall(r"@keyframes l\d+ \{ 0%, ([\d.]+)%", style)]
    assert shown == sorted(shown)
    assert shown[0] < shown[1] < shown[2]


def test_more_lines_than_rows_scroll_and_long_ones_are_cut(tmp_path: Path) -> None:
    lines = [{"version": 2, "command": "many"}, *([n, "o", f"{n} {'x' * 200}\n"] for n in range(200))]
    path = tmp_path / "many.cast"
    path.write_text("\n".join(map(json.dumps, lines)))
    cast.draw(path, tmp_path / "many.svg")
    text = (tmp_path / "many.svg").read_text()
    texts = re.findall(r">([^<]*)</text>", text)
    assert texts[-1].startswith("199 ")
    assert {len(text) for text in texts} == {cast.COLUMNS}
    assert text.count("translateY") >= len(texts) - cast.ROWS


@pytest.mark.parametrize("content", ["", "{}", "no JSON", '{"version": 2}\n[1]'])
def test_what_is_no_recording_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.cast"
    path.write_text(content)
    with pytest.raises(RehearsalError, match="is no recording"):
        cast.draw(path, tmp_path / "bad.svg")
