"""Preflight as a page: the verdict first, memory to scale, and nothing loaded from elsewhere."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.views.pages import assert_stands_alone
from tests.workload.preflight.test_verdict import compiled, judged, llama
from workload.__main__ import main
from workload.preflight import command
from workload.preflight.page import page
from workload.preflight.slices import CHIP, GIB


@pytest.mark.parametrize(
    ("temporaries_gib", "verdict", "css"),
    [(14.0, "FITS", "ok"), (28.8, "UNCERTAIN", "warn"), (40.0, "DOES NOT FIT", "bad")],
)
def test_the_verdict_comes_first(temporaries_gib: float, verdict: str, css: str) -> None:
    text = page(judged(llama(), compiled(temporaries_gib)), "mine.toml")
    body = text.partition("<main>")[2].strip()
    assert body.startswith(f'<h1 class="{css}">{verdict}</h1>')
    assert_stands_alone(text)
    assert ('class="over"' in text) == (temporaries_gib > 28), "the sum crosses the limit"


def test_each_part_of_memory_begins_where_the_one_before_ends() -> None:
    text = page(judged(llama(), compiled(14.0)), "mine.toml")
    bars = re.findall(r'<i class="(\w*)" style="left:([\d.]+)%;width:([\d.]+)%">', text)[:5]
    total = CHIP.hbm_bytes / GIB
    assert [float(width) for _, _, width in bars[:2]] == pytest.approx([100 / total, 1400 / total], abs=0.01)
    ends = [float(left) + float(width) for _, left, width in bars]
    assert [float(left) for _, left, _ in bars[1:4]] == pytest.approx(ends[:3], abs=0.02)
    assert bars[4][:2] == ("all", "0.00")
    assert ends[4] == pytest.approx(ends[3], abs=0.02)
    units = re.findall(r"</span><span>[\d.]+ (\w+)</span>", text)
    assert units == ["GiB"] * 5 + ["s"] * 6, "the same unit in all rows of a chart"


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
    assert '<h1 class="ok">FITS</h1>' in out.read_text()
    assert main(["preflight", "tiny.toml", "--slice", "v6e-16", "--html", str(tmp_path / "no" / "x")]) != 0
    assert "must be in an existing folder" in capsys.readouterr().err
