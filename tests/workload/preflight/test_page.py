"""Preflight as a page: the verdict first, memory to scale, and nothing loaded from elsewhere."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.workload.preflight.test_verdict import compiled, judged, llama
from workload.__main__ import main
from workload.preflight import command
from workload.preflight.page import page
from workload.preflight.slices import CHIP, GIB


class Nesting(HTMLParser):
    """Fails where an element isn't closed in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    ("temporaries_gib", "verdict", "css"),
    [(14.0, "FITS", "yes"), (28.8, "UNCERTAIN", "uncertain"), (40.0, "DOES NOT FIT", "no")],
)
def test_the_verdict_comes_first(temporaries_gib: float, verdict: str, css: str) -> None:
    text = page(judged(llama(), compiled(temporaries_gib)), "mine.toml")
    body = text.partition("<main>")[2]
    assert body.startswith(f'<h1 class="{css}">{verdict}</h1>')
    nesting = Nesting()
    nesting.feed(text)
    assert nesting.open == []
    assert not re.search(r'(src|href)="', text), "one file"
    assert ('class="over"' in text) == (temporaries_gib > 28), "the sum crosses the limit"


def test_each_part_of_memory_begins_where_the_one_before_ends() -> None:
    text = page(judged(llama(), compiled(14.0)), "mine.toml")
    bars = re.findall(r'<i class="(\w*)" style="left:([\d.]+)%;width:([\d.]+)%">', text)[:5]
    total = CHIP.hbm_bytes / GIB
    assert [float(width) for _, _, width in bars[:2]] == pytest.approx([100 / total, 1400 / total], abs=0.01)
    ends = [float(left) + float(width) for _, left, width in bars]
    assert [float(left) for _, left, _ in bars[1:4]] == pytest.approx(ends[:3], abs=0.02)
    assert (bars[4][0], float(bars[4][1]), float(bars[4][2])) == (
        "all",
        0.0,
        pytest.approx(ends[3], abs=0.02),
    )


def test_a_refusal_and_a_name_are_shown_as_text() -> None:
    text = page(judged(llama(), compiled(refused="a <b> & more")), "<mine>.toml")
    assert "a &lt;b&gt; &amp; more" in text
    assert "<mine>" not in text


def test_the_command_writes_it_beside_its_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "compile_step", lambda *_, **__: replace(compiled(), attention="einsum"))
    out = tmp_path / "found.html"
    assert main(["preflight", "tiny.toml", "--slice", "v6e-16", "--html", str(out)]) == 0
    assert "tiny.toml on v6e-16: FITS" in capsys.readouterr().out
    assert '<h1 class="yes">FITS</h1>' in out.read_text()
    assert main(["preflight", "tiny.toml", "--slice", "v6e-16", "--html", str(tmp_path / "no" / "x")]) != 0
    assert "must be in an existing folder" in capsys.readouterr().err
