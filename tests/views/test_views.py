"""Charts and tables that several packages draw."""

from math import nan

import pytest

from views.chart import chart, extent, short
from views.counts import counted
from views.table import aligned, markdown


def test_a_chart_goes_up_with_its_values_and_shows_gaps_and_lone_points() -> None:
    lines = [[(0.0, 0.0), (10.0, 50.0), (20.0, nan), (30.0, 100.0)], [(10.0, nan)]]
    text = chart(lines, "rate <over time>")
    assert '<path d="M0.0 98.0h0L33.3 50.0M100.0 2.0h0"/><path d=""/>' in text
    assert 'aria-label="rate &lt;over time&gt;"' in text


def test_an_extent_holds_zero_and_has_a_height() -> None:
    assert [extent(lines) for lines in ([], [[(0, 2.5), (1, nan)]], [[(0, -1.0)]])] == [
        (0, 1),
        (0, 2.5),
        (-1, 0),
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (2.34567, "2.346"), (22.45, "22.45"), (5200.4, "5,200")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    lines = [("what", "$"), ("v6e-16", "22.45")]
    assert aligned(lines) == ["what    $", "v6e-16  22.45"]
    assert aligned(lines, right=True) == ["what        $", "v6e-16  22.45"]


def test_markdown_escapes_cells() -> None:
    assert markdown(("a", "n"), [("x|y", 1)], numbers={1}) == ["| a | n |", "| --- | ---: |", r"| x\|y | 1 |"]


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 hosts"), (1, "1 host"), (2, "2 hosts"), (1200, "1,200 hosts")]
)
def test_a_count_is_plural_unless_it_is_one(number: int, text: str) -> None:
    assert counted(number, "host") == text
