"""User-defined Python filter in place of the built-in ones.

    def documents(rows):
        for row in rows:  # {"id": "books/a.jsonl:12", "text": "…"}
            if "lorem ipsum" in row["text"]:
                yield {"id": row["id"], "rejected": "placeholder text"}
            else:
                yield {"id": row["id"], "text": row["text"].lower()}

Output has the id of its input; an id may come out several times. An id that doesn't is rejected too.
The same rows must give the same documents each time: tasks may run twice.
"""

import sys
import traceback
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from workload.errors import DataError
from workload.preprocess.config import InputConfig
from workload.preprocess.reading import InputRow, checked

Documents = Callable[[Iterator[dict[str, str]]], Iterator[Any]]
REASON, MISSING = "script", "the script yielded nothing for it"


@lru_cache(1)
def load(source: bytes, name: str) -> Documents:
    """Return the function of a script.

    Raises:
        DataError: it isn't Python, or lacks the function.
    """
    space: dict[str, Any] = {"__name__": "documents", "__file__": name}
    try:
        exec(compile(source, name, "exec"), space)
    except Exception as error:
        raise _failed(name, error) from None
    documents = space.get("documents")
    if not callable(documents):
        fix = "define `def documents(rows)`; docs/reference/preprocess.md has an example"
        raise DataError(f"{name}: has no function `documents`\n    fix: {fix}")
    function: Documents = documents
    return function


def applied(
    rows: Iterator[InputRow], documents: Documents, name: str, config: InputConfig
) -> Iterator[InputRow]:
    """Apply a script to rows; rows rejected before bypass it.

    Raises:
        DataError: the script failed, or yielded something other than documents.
    """
    waiting: dict[str, InputRow] = {}
    parts: dict[str, int] = {}
    rejected: list[InputRow] = []

    def given() -> Iterator[dict[str, str]]:
        for row in rows:
            if row.reason:
                rejected.append(row)
                continue
            waiting[row.where] = InputRow(row.name, row.number, row.where)
            parts[row.where] = 0
            yield {"id": row.where, "text": row.text}

    try:
        for out in documents(given()):
            yield _taken(out, waiting, parts, name, config)
            yield from rejected
            rejected.clear()
    except DataError:
        raise
    except Exception as error:
        raise _failed(name, error) from None
    yield from rejected
    for where, count in parts.items():
        if not count:
            row = waiting[where]
            yield InputRow(row.name, row.number, where, reason=REASON, detail=MISSING)


def _taken(
    out: Any, waiting: dict[str, InputRow], parts: dict[str, int], name: str, config: InputConfig
) -> InputRow:
    row = waiting.get(out.get("id", "")) if isinstance(out, dict) else None
    if row is None or ("text" in out) == ("rejected" in out):
        fix = 'yield {"id": row["id"], "text": …} or {"id": row["id"], "rejected": "why"}'
        raise DataError(f"{name}: documents yielded {str(out)[:80]}\n    fix: {fix}")
    part = parts[row.where]
    parts[row.where] += 1
    where = f"{row.where}#{part}" if part else row.where
    made = InputRow(row.name, row.number, where, part=part)
    if "rejected" in out:
        return InputRow(row.name, row.number, where, reason=REASON, detail=str(out["rejected"]), part=part)
    return checked(made, out["text"], config)


def _failed(name: str, error: Exception) -> DataError:
    """Return the error, with its line in the script."""
    own = [frame for frame in traceback.extract_tb(sys.exc_info()[2]) if frame.filename == name]
    line = own[-1].lineno if own else getattr(error, "lineno", None)
    place = f"{name}:{line}" if line else name
    fix = "mend the script; a run of another script is another run"
    return DataError(f"{place}: {type(error).__name__}: {error}\n    fix: {fix}")
