"""The field's words: private terms don't come back, docstrings and names are plain."""

from tools.words import ROOT, files, problems, terms


def test_no_term_that_was_replaced_is_back() -> None:
    assert {pattern: count for pattern, count in terms(ROOT).items() if count} == {}


def test_no_docstring_begins_with_a_question_and_no_name_is_a_pronoun() -> None:
    assert [
        (str(path.relative_to(ROOT)), line, rule)
        for path in files(ROOT)
        if path.suffix == ".py"
        for line, rule in problems(path.read_text(encoding="utf-8"))
    ] == []


def test_what_breaks_the_rules_is_reported() -> None:
    source = '"""What it is."""\n\ndef tell(one):\n    """Whether it is so."""\n    found = one\n'
    assert [line for line, _ in problems(source)] == [1, 4, 3, 3, 5]
