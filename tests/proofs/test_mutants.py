"""That mutants are found, tried and judged; `python -m tests.proofs mutants` tries them."""

import ast
from collections import Counter

import pytest

from tests.proofs import mutating, sites

LIMITS = "rehearsal/cloud/services/storage/limits.py"
TEST = "tests/rehearsal/cloud/storage/test_storage_limits.py"


def test_each_site_is_a_program_with_one_change() -> None:
    known = sites.every()
    for site in sites.sample(known, 3, 1):
        source = (sites.ROOT / site.path).read_text()
        changed = site.applied(source)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)), site
    counts = Counter((site.part, site.operator) for site in known)
    assert len(counts) >= 16
    assert min(counts.values()) >= 1
    assert len(known) >= 1000
    assert len(sites.sample(known, 6, 1)) >= 60
    assert sites.sample(known, 6, 1) == sites.sample(known, 6, 1)
    assert mutating.stale(known) == []


def test_a_change_that_tests_notice_and_one_that_they_dont() -> None:
    (guard,) = (site for site in sites.every() if (site.path, site.operator) == (LIMITS, "guard off"))
    source = (sites.ROOT / LIMITS).read_text()
    begin = source.index("_REMEMBERED = 10_000") + len("_REMEMBERED = ")
    line = source[:begin].count("\n") + 1
    where = (guard.part, LIMITS, line, line, "module", "value changed", "10_000", "10_001")
    harmless = sites.Site(*where, begin, begin + len("10_000"))
    with mutating.trees(1) as lent:
        coverage = mutating.Coverage(lent, print, (TEST,))
        outcomes = mutating.tried([guard, harmless], lent, coverage, print)
    assert {one.site: (one.came_to, one.by.partition("::")[0]) for one in outcomes} == {
        guard: ("noticed", TEST),
        harmless: ("survived", f"{len(coverage.tests(harmless))} tests passed"),
    }
    assert coverage.tests(harmless)


def test_a_reason_for_what_is_no_site_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = {("gone.py", "f", "guard off", "x"): "because"}
    monkeypatch.setattr(mutating, "declared", lambda: reason)
    assert mutating.stale(sites.every()) == ["gone.py | f | guard off | x"]
