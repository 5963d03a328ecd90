"""Recordings: a command's output with its times, and the picture that plays it."""

import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rehearsal.errors import RehearsalError
from rehearsal.scenario import cast
from rehearsal.world.checkout import TREE
from tests.limits import HANG_S

CHUNKS = [(0.0, b"one\ntw"), (0.75, b"o\x1b[31m <&>\x1b[0m\nover\rdrawn over\n")]


class Output(io.BytesIO):
    """A command's output that takes its time."""

    def __init__(self, clock: list[float]) -> None:
        super().__init__()
        self._clock, self._chunks = clock, list(CHUNKS)

    def read1(self, size: int | None = -1) -> bytes:
        later_s, chunk = self._chunks.pop(0) if self._chunks else (0.0, b"")
        self._clock[0] += later_s
        return chunk


def test_a_recording_has_times_and_its_picture_shows_each_line_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [7.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    path, log, out = (tmp_path / name for name in ("run.cast", "run.log", "new/run.svg"))
    follower = cast.follow(Output(clock), log.open("wb"), path.open("w"), "print <things>", "fast")
    follower.join(HANG_S)
    assert log.read_bytes() == b"".join(chunk for _, chunk in CHUNKS), "as without a recording"
    header, *events = map(json.loads, path.read_text().splitlines())
    assert (header["version"], header["command"]) == (2, "print <things>")
    assert [(at_s, text.encode()) for at_s, _, text in events] == CHUNKS

    cast.draw(path, out)
    drawn = ElementTree.parse(out)
    texts = [item.text for item in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["fast", "$ print <things>", "one", "two <&>", "drawn over"]
    style = next(drawn.iter("{http://www.w3.org/2000/svg}style")).text or ""
    shown = [float(at) for at in re.findall(r"@keyframes l\d+ \{ 0%, ([\d.]+)%", style)]
    # The pause before the last two is cut to half a second, and the end stays for six.
    assert shown == pytest.approx([0, 0, 100 * 0.5 / 6.5, 100 * 0.5 / 6.5], abs=0.01)


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
def test_another_file_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.cast"
    path.write_text(content)
    with pytest.raises(RehearsalError, match="is no recording"):
        cast.draw(path, tmp_path / "bad.svg")


def test_the_readmes_recording_shows_the_product_and_not_the_machine_that_recorded_it() -> None:
    texts = re.findall(r">([^<]*)</text>", (TREE / "docs/pictures/recovery.svg").read_text())
    own = [text for text in texts if re.search("interpreter|packed|python-build-standalone|downlo", text)]
    assert not own
    (done,) = [text for text in texts if "own: done after" in text]
    assert re.search(r"\$\d+\.\d\d for \d+\.\d chip-hours by Google", done), (
        "the price by the clock of its hours"
    )
