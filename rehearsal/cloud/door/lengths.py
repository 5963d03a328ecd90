"""Lengths of texts, which discovery documents state in prose alone.

Few phrases are understood, and only as whole sentences about the value itself; a description that has two
different limits, or that is about a full resource name, has none here. Google's words of the refusal aren't
published for all of them; these are this project's.
"""

from __future__ import annotations

import re

_SUBJECT = (
    r"(?:(?:The|This|If provided, this) "
    r"(?:(?:display |resource )?(?:name|value|id|ID|label|tag|string|key|filter) )?)?"
)
_SENTENCES = tuple(
    re.compile(rf"(?:^|[.)] ?|\* ){_SUBJECT}{phrase}(?=[ ,.;)]|$)")
    for phrase in (
        r"(?:[Mm]ust|should|will) be (?P<least>\d+)-(?P<most>[\d,]+) characters",
        r"[Mm]ust (?:be|consist of) (?:between |from )?(?P<least>\d+) (?:and|to) (?P<most>[\d,]+) characters",
        r"(?:has a |have a )?[Mm]aximum (?:length|character length)(?: of the (?:filter|description))? "
        r"is (?P<most>[\d,]+) characters",
        r"(?:[Mm]ust not|[Cc]annot|[Mm]ay not) exceed (?P<most>[\d,]+) characters",
        r"(?:must not be empty or )exceed (?P<most>[\d,]+) characters",
        r"must not contain more than (?P<most>[\d,]+) characters",
        r"must be less than or equal to (?P<most>[\d,]+) characters",
        r"(?:Maximum of|Max) (?P<most>[\d,]+) characters",
        r"[Cc]an be up to (?P<most>[\d,]+) characters",
    )
)
_IN_PARTS = re.compile(r"projects/|\[PROJECT_ID\]|BigQuery URI")
_CLUSTER = re.compile(r"can be up to (?P<most>40) characters with the following restrictions")  # GKE's


def limits(description: str) -> tuple[int, int] | None:
    """Return the least and the greatest length that a field's description states; None if it doesn't."""
    text = " ".join(description.split())
    if _IN_PARTS.search(text):
        return None
    limit = {
        (int(match.groupdict().get("least") or 0), int(match["most"].replace(",", "")))
        for sentence in (*_SENTENCES, _CLUSTER)
        for match in sentence.finditer(text)
    }
    return limit.pop() if len(limit) == 1 else None
