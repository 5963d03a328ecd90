"""Private terms that were replaced don't come back, and those that are left don't become more."""

from tools.words import GONE, LEFT, ROOT, count

# Lower it when terms were replaced; never raise it.
AT_MOST = 1121


def test_no_term_that_was_replaced_is_back() -> None:
    assert {pattern: times for pattern, times in count(ROOT, GONE).items() if times} == {}


def test_private_terms_become_fewer() -> None:
    assert sum(count(ROOT, LEFT).values()) <= AT_MOST
