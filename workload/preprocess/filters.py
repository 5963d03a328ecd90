"""Filters of documents by their text, in any language.

The share of repeated lines is a rule of Gopher's (arxiv.org/abs/2112.11446, table A1), with 0.3 there.
"""

import re

from workload.preprocess.config import FiltersConfig

REPLACEMENT = "\ufffd"
_NEITHER_LETTER_NOR_DIGIT = re.compile(r"[\W_]+")
_WHITE = re.compile(r"\s+")


def problem(text: str, rules: FiltersConfig) -> tuple[str, str]:
    """Return the reason for a document's rejection, a word and its details; empty if it is accepted."""
    characters = len(text.strip())
    if characters < rules.min_characters:
        return "min_characters", f"has {characters}, at least {rules.min_characters} are needed"
    if rules.min_alphanumeric_fraction > 0:
        share = len(_NEITHER_LETTER_NOR_DIGIT.sub("", text)) / len(_WHITE.sub("", text))
        if share < rules.min_alphanumeric_fraction:
            return "min_alphanumeric_fraction", f"has {share:.3f}, below {rules.min_alphanumeric_fraction:g}"
    if rules.max_repeated_line_fraction < 1:
        lines = [line for line in map(str.strip, text.splitlines()) if line]
        share = 1 - len(set(lines)) / len(lines)
        if share > rules.max_repeated_line_fraction:
            return (
                "max_repeated_line_fraction",
                f"has {share:.3f}, above {rules.max_repeated_line_fraction:g}",
            )
    if rules.max_replacement_fraction < 1:
        share = text.count(REPLACEMENT) / len(text)
        if share > rules.max_replacement_fraction:
            return "max_replacement_fraction", f"has {share:.3f}, above {rules.max_replacement_fraction:g}"
    return "", ""
