"""Reader of documents in pieces of inputs: each line, row and file, unusable ones with the reason."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Any

import pyarrow  # type: ignore[import-untyped]
from pyarrow import parquet

from workload.data.sources import IS_ARRAY, as_lines, is_array, loads, suffix, whole
from workload.preprocess.config import InputConfig
from workload.preprocess.inputs import BROKEN, COMPRESSED, Piece, decompressed, opened, unchanged, unreadable

# Reasons for rejection before any filter.
UNUSABLE = {
    "not_utf8": "isn't UTF-8, or is binary",
    "not_json": "isn't JSON",
    "array": IS_ARRAY,
    "no_field": "has no field or column of that name",
    "not_text": "the field holds something else than text",
    "too_long": "is longer than input.max_document_mb",
    "empty": "holds nothing but white space",
    "link": "is a link to a folder, or to nothing",
}
_ROWS = 256  # of Parquet, at once


@dataclass(frozen=True)
class InputRow:
    """A line, a row or a file.

    Attributes:
        name: of its input.
        number: of the line or row; 0 of a file.
        where: both, for people.
        text: of the document; empty if it is rejected.
        reason: for rejection, a word; empty if it isn't rejected.
        detail: of the reason.
        count: number of rows, if a whole piece is rejected.
        part: index among documents that a script made of one row.
    """

    name: str
    number: int
    where: str
    text: str = ""
    reason: str = ""
    detail: str = ""
    count: int = 1
    part: int = 0


def rows(piece: Piece, config: InputConfig) -> Iterator[InputRow]:
    """Yield every line, row or file of a piece.

    Raises:
        DataError: it can't be read to its end, or has changed since it was listed.
        StoreError: the bucket can't be read.
    """
    try:
        with opened(piece.input) as file:
            if piece.kind == "parquet":
                yield from _parquet(piece, file, config)
            elif piece.kind == "lines":
                yield from _lines(piece, decompressed(piece.input, file), config)
            else:
                yield _file(piece, decompressed(piece.input, file), config)
        unchanged(piece.input)
    except BROKEN as error:
        raise unreadable(piece.input, error) from None


def checked(row: InputRow, value: Any, config: InputConfig) -> InputRow:
    """Return the row with its document, or rejected."""
    if value is None:
        return _rejected(row, "empty", "is null")
    if not isinstance(value, str):
        return _rejected(row, "not_text", f"{config.field!r} is a {type(value).__name__}")
    text = whole(value)
    most = config.max_document_mb * 1_000_000
    # UTF-8 has four bytes a character at most, so most documents needn't be encoded for this.
    if len(text) * 4 > most and (size := len(text.encode())) > most:
        return _rejected(row, "too_long", f"has {size} bytes")
    if not text.strip():
        return _rejected(row, "empty", "")
    return InputRow(row.name, row.number, row.where, text, part=row.part)


def _rejected(row: InputRow, reason: str, detail: str, count: int = 1) -> InputRow:
    return InputRow(row.name, row.number, row.where, reason=reason, detail=detail, count=count, part=row.part)


def _file(piece: Piece, file: IO[bytes], config: InputConfig) -> InputRow:
    row = InputRow(piece.input.name, 0, piece.input.name)
    most = config.max_document_mb * 1_000_000
    raw = file.read(most + 1)
    if len(raw) > most:
        return _rejected(row, "too_long", f"has more than {most} bytes")
    if b"\0" in raw:
        return _rejected(row, "not_utf8", "holds a zero byte")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        return _rejected(row, "not_utf8", _spot(error))
    name = PurePosixPath(piece.input.name)
    if suffix(name, COMPRESSED) == ".json" and is_array(text):
        return _rejected(row, "array", as_lines(name))
    return checked(row, text, config)


def _lines(piece: Piece, file: IO[bytes], config: InputConfig) -> Iterator[InputRow]:
    # JSON spells a byte with six at most; the rest of the line may take a mebibyte.
    most = 6 * config.max_document_mb * 1_000_000 + 2**20
    if piece.start:
        file.seek(piece.start)
    number, at = piece.first - 1, piece.start
    while (piece.end < 0 or at < piece.end) and (raw := file.readline(most)):
        number, at = number + 1, at + len(raw)
        row = InputRow(piece.input.name, number, f"{piece.input.name}:{number}")
        if len(raw) == most and not raw.endswith(b"\n"):
            while rest := file.readline(2**20):
                at += len(rest)
                if rest.endswith(b"\n"):
                    break
            yield _rejected(row, "too_long", f"has more than {most} bytes")
        elif raw.strip():
            yield _line(row, raw, config)


def _line(row: InputRow, raw: bytes, config: InputConfig) -> InputRow:
    try:
        entry = loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return _rejected(row, "not_utf8", _spot(error))
    except (ValueError, RecursionError) as error:
        return _rejected(row, "not_json", str(error))
    if not isinstance(entry, dict):
        return _rejected(row, "not_json", f"is a {type(entry).__name__}, not an object")
    if config.field not in entry:
        return _rejected(row, "no_field", _has(list(entry)))
    return checked(row, entry[config.field], config)


def _parquet(piece: Piece, file: IO[bytes], config: InputConfig) -> Iterator[InputRow]:
    name = piece.input.name
    table = parquet.ParquetFile(file)
    schema = table.schema_arrow
    groups = range(piece.start, piece.end)
    count = sum(table.metadata.row_group(group).num_rows for group in groups)
    once = schema.names.count(config.field) == 1
    kind = schema.field(config.field).type if once else None
    if kind is None or not _is_text(kind):
        row = InputRow(name, piece.first, f"{name}: rows {piece.first} to {piece.first + count - 1}")
        reason = "no_field" if kind is None else "not_text"
        if count:
            yield _rejected(row, reason, _has(schema.names) if kind is None else f"is {kind}", count)
        return
    number = piece.first
    for batch in table.iter_batches(batch_size=_ROWS, row_groups=list(groups), columns=[config.field]):
        for value in _values(batch.column(0)):
            row = InputRow(name, number, f"{name}: row {number}")
            if isinstance(value, UnicodeDecodeError):
                yield _rejected(row, "not_utf8", _spot(value))
            else:
                yield checked(row, value, config)
            number += 1


def _values(column: Any) -> list[Any]:
    """Return each value of a column; for invalid UTF-8, which some writers don't check, its error."""
    try:
        values: list[Any] = column.to_pylist()
        return values
    except UnicodeDecodeError:
        return [_value(scalar) for scalar in column]


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return error


def _is_text(kind: Any) -> bool:
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind))


def _has(names: list[str]) -> str:
    return f"has {', '.join(names[:8])}" if names else "has none"


def _spot(error: UnicodeDecodeError) -> str:
    return f"byte {error.object[error.start]:#04x} at {error.start}"
