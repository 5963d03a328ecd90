"""Reader of documents in text files, JSON lines and Parquet, in a fixed order."""

import dataclasses
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import IO, Any, Protocol, cast

from workload.errors import DataError

LINES, PARQUET = (".jsonl", ".ndjson"), (".parquet",)
REJECTED = "rejected.jsonl"  # unusable samples, with the reason
UNREADABLE = (OSError, EOFError, zlib.error)  # errors of reading a file, compressed or not
IS_ARRAY = "is a JSON array, not JSON lines"
_ARRAY = re.compile(r"\ufeff?\s*\[\s*\{")  # of objects


@dataclass(frozen=True)
class Sample:
    """A line, a row or a file.

    Attributes:
        where: file and line.
        content: normalised text, or another of the kinds requested; empty if there is none.
        name: unique among samples.
        problem: reason why it can't be used, with details after a colon; empty if it can.
        fix: of the problem.
        is_text: false for a file that is skipped as a whole.
        spans: role, begin and end of each message's content in a conversation's text.
    """

    where: str
    content: Any = ""
    name: str = ""
    problem: str = ""
    fix: str = ""
    is_text: bool = True
    spans: tuple[tuple[str, int, int], ...] = ()


class Reading(Protocol):
    """Source of samples, of any kind."""

    @property
    def paths(self) -> Sequence[Path]:
        """Files and folders, as given."""

    @property
    def decides(self) -> list[Any]:
        """Settings besides the files' bytes that determine the samples; for JSON."""

    def files(self) -> list[Path]:
        """Return every file, in order; DataError if one is missing."""

    def samples(self) -> Iterator[Sample]:
        """Yield every sample in order, unusable ones with their problem."""


@dataclass
class Sources:
    """Files and folders of documents.

    A `.jsonl` file holds one a line, as does a `.json` file of JSON lines, and a `.parquet` file
    one a row, in `field`; any other file is one document, if it is UTF-8 text. All but Parquet
    may be compressed by gzip, e.g. `.json.gz`. In folders, names that begin with a dot are passed over.

    Attributes:
        paths: files and folders; a folder's files come in the order of their paths.
        field: of a line or row.
        id_field: of a line or row, its name (default: its place).
        kinds: types that the field may hold.
        others: fields of rows that lack it, which `otherwise` makes the content of.
        otherwise: returns None for a row that has none.
        links: links in folders that lead to no file, with a description.
        hidden: entries passed over for their names, by the folder that was given.
    """

    paths: Sequence[Path]
    field: str = "text"
    id_field: str = ""
    kinds: tuple[type, ...] = (str,)
    others: Sequence[str] = ()
    otherwise: Callable[[Mapping[str, Any]], Any] = lambda _: None
    links: dict[Path, str] = dataclasses.field(default_factory=dict)
    hidden: dict[Path, int] = dataclasses.field(default_factory=dict)

    @property
    def decides(self) -> list[Any]:
        """See `Reading.decides`."""
        return [self.field, self.id_field]

    def files(self) -> list[Path]:
        """Return every file, in order.

        Raises:
            DataError: a path is missing, or a folder can't be read.
        """
        files: list[Path] = []
        try:
            missing = [str(path) for path in self.paths if not path.exists()]
            if missing:
                fix = "name existing ones"
                raise DataError(f"--source {', '.join(missing)}: no such file or folder\n    fix: {fix}")
            for source in self.paths:
                if source.is_file():
                    files.append(source)
                else:
                    self.hidden.pop(source, None)
                    inside = [path for path in self._inside(source, source) if path.is_file()]
                    files += sorted(inside, key=lambda path: path.relative_to(source).as_posix())
        except OSError as error:
            raise unreadable(Path(error.filename), error) from None
        return files

    def documents(self, aside: Callable[[Sample], None] = lambda _: None) -> Iterator[str]:
        """Yield every document's text; see `usable`."""
        return (sample.content for sample in usable(self, aside))

    def samples(self) -> Iterator[Sample]:
        """Yield every line, row and text file, with its problem if it has one.

        Raises:
            DataError: a file can't be read.
        """
        for path in self.files():
            try:
                yield from self._samples(path)
            except UNREADABLE as error:
                raise unreadable(path, error) from None
        for path, problem in sorted(self.links.items()):
            fix = "name its target as a --source of its own"
            yield Sample(str(path), problem=problem, fix=fix, is_text=False)
        for path, count in sorted(self.hidden.items()):
            fix = "name it as a --source of its own"
            yield Sample(str(path), problem=f"hidden: {count} passed over", fix=fix, is_text=False)

    def _samples(self, path: Path) -> Iterator[Sample]:
        kind = suffix(path)
        if _is_empty(path):
            yield Sample(str(path), problem="is an empty file", fix="leave it out", is_text=False)
        elif kind in LINES or (kind == ".json" and self._holds_lines(path)):
            for where, entry, problem in lines(path):
                fix = "mend the line, or leave the file out"
                yield Sample(where, problem=problem, fix=fix) if problem else self._sample(entry, where)
        elif kind in PARQUET:
            yield from self._rows(path)
        else:
            text = _text(path)
            if text is None:
                problem = "is no UTF-8 text"
                yield Sample(str(path), problem=problem, fix="leave it out", is_text=False)
            elif kind == ".json" and is_array(text):
                yield Sample(str(path), problem=IS_ARRAY, fix=as_lines(path))
            else:
                yield Sample(str(path), text, str(path))

    def _inside(self, folder: Path, source: Path) -> Iterator[Path]:
        """Yield all entries of a folder but hidden ones; unlike `rglob`, raises for unreadable folders."""
        for entry in folder.iterdir():
            if entry.name.startswith("."):
                self.hidden[source] = self.hidden.get(source, 0) + 1
                continue
            yield entry
            if entry.is_symlink() and not entry.is_file():
                self.links[entry] = "is a link to a folder" if entry.is_dir() else "is a link to nothing"
            elif entry.is_dir():
                yield from self._inside(entry, source)

    def _holds_lines(self, path: Path) -> bool:
        with opened(path) as file:
            return holds_lines(file, self.field)

    def _rows(self, path: Path) -> Iterator[Sample]:
        try:
            from pyarrow import ArrowInvalid, parquet  # type: ignore[import-untyped]
        except ModuleNotFoundError:
            raise DataError(f"{path}: Parquet needs pyarrow\n    fix: pip install pyarrow") from None
        try:
            with parquet.ParquetFile(path) as table:
                columns = table.schema_arrow.names
                if columns.count(self.field) > 1:
                    fix = "rename one of them"
                    raise DataError(f"{path}: has two columns {self.field!r}\n    fix: {fix}")
                if self.field not in columns and not set(self.others) & set(columns):
                    raise DataError(
                        f"{path}: has no column {self.field!r}\n    fix: --field one of {', '.join(columns)}"
                    )
                wanted = [name for name in (self.field, self.id_field, *self.others) if name in columns]
                row = 0
                for batch in table.iter_batches(batch_size=1024, columns=wanted):
                    for entry in batch.to_pylist():
                        yield self._sample(entry, f"{path}: row {row}", columns)
                        row += 1
        except ArrowInvalid as error:
            raise DataError(f"{path}: is not Parquet: {error}\n    fix: get the file again") from None

    def _sample(self, entry: Any, where: str, columns: Sequence[str] = ()) -> Sample:
        if isinstance(entry, list) and entry and isinstance(entry[0], dict):
            return Sample(where, problem=IS_ARRAY, fix=as_lines(Path(where.rpartition(":")[0])))
        fields = entry if isinstance(entry, dict) else {}
        content = fields.get(self.field)
        if content is None and self.others:
            content = self.otherwise(fields)
        if content is None and self.field in fields:
            content = ""  # null: no document
        if not isinstance(content, self.kinds):
            known = [name for name, value in fields.items() if isinstance(value, self.kinds)]
            fix = f"--field one of {', '.join(known)}" if known else "mend it, or leave the file out"
            desired = " or ".join("messages" if kind is list else "text" for kind in self.kinds)
            return Sample(where, problem=f"has no {desired} in {self.field!r}", fix=fix)
        name = name_of(fields.get(self.id_field)) if self.id_field else where
        if not name:
            names = columns or [name for name, value in fields.items() if name_of(value)]
            named = ", ".join(name for name in names if name not in (self.field, self.id_field))
            give = f"--id one of {named}" if named else "name it"
            fix = f"{give}, or leave --id out: its place is its name then"
            return Sample(where, problem=f"has no {self.id_field!r} to name it", fix=fix)
        return Sample(where, whole(content) if isinstance(content, str) else content or "", name)


def usable(reading: Reading, aside: Callable[[Sample], None]) -> Iterator[Sample]:
    """Yield every document; pass files that are none, and empty documents, to `aside` with their problem.

    Raises:
        DataError: a file, a line or a row can't be read.
    """
    for sample in reading.samples():
        if sample.problem and sample.is_text:
            raise DataError(f"{sample.where}: {sample.problem}\n    fix: {sample.fix}")
        if sample.content:
            yield sample
        else:
            aside(replace(sample, problem=sample.problem or "is empty"))


def is_array(text: str) -> bool:
    """Return True for a JSON array of objects."""
    return _ARRAY.match(text) is not None


def as_lines(path: PurePath) -> str:
    """Return the command that makes lines of an array's objects."""
    unpacked, stem = ("gzip -dc", path.stem) if path.suffix == ".gz" else ("cat", path.name)
    return f"{unpacked} {path} | jq -c '.[]' > {stem.partition('.')[0]}.jsonl, and name that"


def holds_lines(file: IO[bytes], field: str, most_bytes: int = -1) -> bool:
    """Return True if each line is an object: the first is, and has the field or isn't alone.

    Reads the first two lines, at most `most_bytes` of each.
    """
    first, second = file.readline(most_bytes), file.readline(most_bytes)
    try:
        entry = loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and (field in entry or bool(second.strip()))


def lines(path: Path) -> Iterator[tuple[str, Any, str]]:
    """Yield place, value and problem of each JSON line; empty lines are skipped."""
    with opened(path) as file:
        for number, raw in enumerate(file, 1):
            if raw.strip():
                yield f"{path}:{number}", *parsed(raw)


def loads(raw: str | bytes) -> Any:
    """Parse JSON; numbers of more digits than Python converts become floats."""
    try:
        return json.loads(raw)
    except ValueError as error:
        if "digits" not in str(error):
            raise
        return json.loads(raw, parse_int=float)


def parsed(raw: bytes) -> tuple[Any, str]:
    """Return the value of some JSON, and the problem; empty if it is valid."""
    try:
        return loads(raw), ""
    except (ValueError, RecursionError) as error:
        return None, f"is not JSON: {error}"


def name_of(given: Any) -> str:
    """Return a sample's name: a number, or printable text; else empty."""
    name = str(given) if isinstance(given, str | int) else ""
    return name if name.isprintable() else ""


def whole(text: str) -> str:
    """Replace unpaired surrogates, which JSON can spell and UTF-8 can't."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def suffix(path: PurePath, compressed: Sequence[str] = (".gz",)) -> str:
    """Return a file name's suffix, before the one of its compression."""
    ends = [end.lower() for end in path.suffixes]
    return next(iter(ends[-2:-1] if ends and ends[-1] in compressed else ends[-1:]), "")


def opened(path: Path) -> IO[bytes]:
    """Open a file, decompressed."""
    return cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def unreadable(path: Path, error: Exception) -> DataError:
    """Return the error for a file that can't be read, or is truncated."""
    reason = getattr(error, "strerror", None) or error
    return DataError(f"{path}: can't be read: {reason}\n    fix: let this user read it, or get it again")


def _is_empty(path: Path) -> bool:
    with path.open("rb") as file:
        return not file.read(1)


def _text(path: Path) -> str | None:
    with opened(path) as file:
        raw = file.read()
    if not raw or b"\0" in raw:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
