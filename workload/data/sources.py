"""Documents out of text files, JSON lines and Parquet, one after another, in a fixed order."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from workload.errors import DataError

LINES, PARQUET = (".jsonl", ".ndjson"), (".parquet",)


@dataclass(frozen=True)
class Sample:
    """A line, a row or a file.

    Attributes:
        where: it stands: file and line.
        content: text made whole, or another of the kinds asked for; empty where there is none.
        name: of it, unlike any other's.
        problem: why it can't be used, and after a colon what exactly; empty if it can.
        fix: of the problem.
        is_text: false of a file that is empty or isn't UTF-8.
    """

    where: str
    content: Any = ""
    name: str = ""
    problem: str = ""
    fix: str = ""
    is_text: bool = True


class Reading(Protocol):
    """What samples are read from, whatever they are made of."""

    @property
    def paths(self) -> Sequence[Path]:
        """Files and folders, as they were named."""

    @property
    def decides(self) -> list[Any]:
        """What else than the files' bytes decides what the samples are; for JSON."""

    def files(self) -> list[Path]:
        """Every file, in order; DataError where one isn't there."""

    def samples(self) -> Iterator[Sample]:
        """Every sample in order, those that can't be used with their problem."""


@dataclass
class Sources:
    """Files and folders that hold documents.

    A `.jsonl` file holds one a line, as does a `.json` file of JSON lines, and a `.parquet` file
    one a row, in the field named; any other file is one document, if it is UTF-8 text.

    Attributes:
        paths: files and folders; a folder's files come in the order of their paths.
        field: of a line or row.
        id_field: of a line or row, what names it; its place, unless given.
        kinds: of value that the field may hold.
        not_text: files passed over because they are no text.
    """

    paths: Sequence[Path]
    field: str = "text"
    id_field: str = ""
    kinds: tuple[type, ...] = (str,)
    not_text: int = 0

    @property
    def decides(self) -> list[Any]:
        """See `Reading.decides`."""
        return [self.field, self.id_field]

    def files(self) -> list[Path]:
        """Every file, in order.

        Raises:
            DataError: a path that isn't there, or a folder that can't be looked into.
        """
        found: list[Path] = []
        try:
            missing = [str(path) for path in self.paths if not path.exists()]
            if missing:
                fix = "name existing ones"
                raise DataError(f"--source {', '.join(missing)}: no such file or folder\n    fix: {fix}")
            for source in self.paths:
                if source.is_file():
                    found.append(source)
                else:
                    inside = [path for path in _inside(source) if path.is_file()]
                    found += sorted(inside, key=lambda path: path.relative_to(source).as_posix())
        except OSError as error:
            raise unreadable(Path(error.filename), error) from None
        return found

    def documents(self) -> Iterator[str]:
        """Every document's text; empty ones are left out.

        Raises:
            DataError: naming the file and line that can't be read.
        """
        for sample in self.samples():
            if sample.problem and sample.is_text:
                raise DataError(f"{sample.where}: {sample.problem}\n    fix: {sample.fix}")
            if sample.content:
                yield sample.content

    def samples(self) -> Iterator[Sample]:
        """Every line, row and file of text, what is wrong with it along with it.

        Raises:
            DataError: naming the file that can't be read.
        """
        self.not_text = 0
        for path in self.files():
            try:
                yield from self._samples(path)
            except OSError as error:
                raise unreadable(path, error) from None

    def _samples(self, path: Path) -> Iterator[Sample]:
        if path.suffix in LINES or (path.suffix == ".json" and self._holds_lines(path)):
            for where, entry, problem in lines(path):
                fix = "mend the line, or leave the file out"
                yield Sample(where, problem=problem, fix=fix) if problem else self._sample(entry, where)
        elif path.suffix in PARQUET:
            yield from self._rows(path)
        else:
            text = _text(path)
            if text is None:
                self.not_text += 1
                problem = "is empty or no UTF-8 text"
                yield Sample(str(path), problem=problem, fix="leave it out", is_text=False)
            else:
                yield Sample(str(path), text, str(path))

    def _holds_lines(self, path: Path) -> bool:
        """Whether each line is an object: the first is one, and has the field or isn't alone."""
        with path.open("rb") as file:
            first, second = file.readline(), file.readline()
        try:
            entry = json.loads(first)
        except (ValueError, RecursionError):
            return False
        return isinstance(entry, dict) and (self.field in entry or bool(second.strip()))

    def _rows(self, path: Path) -> Iterator[Sample]:
        try:
            from pyarrow import ArrowInvalid, parquet  # type: ignore[import-untyped]
        except ModuleNotFoundError:
            raise DataError(f"{path}: Parquet needs pyarrow\n    fix: pip install pyarrow") from None
        try:
            with parquet.ParquetFile(path) as table:
                names = table.schema_arrow.names
                if self.field not in names:
                    raise DataError(
                        f"{path}: has no column {self.field!r}\n    fix: --field one of {', '.join(names)}"
                    )
                columns = [name for name in (self.field, self.id_field) if name in names]
                row = 0
                for batch in table.iter_batches(batch_size=1024, columns=columns):
                    for entry in batch.to_pylist():
                        yield self._sample(entry, f"{path}: row {row}", names)
                        row += 1
        except ArrowInvalid as error:
            raise DataError(f"{path}: is not Parquet: {error}\n    fix: get the file again") from None

    def _sample(self, entry: Any, where: str, columns: Sequence[str] = ()) -> Sample:
        fields = entry if isinstance(entry, dict) else {}
        content = fields.get(self.field)
        if content is None and self.field in fields:
            content = ""  # a null is no document
        if not isinstance(content, self.kinds):
            known = [name for name, value in fields.items() if isinstance(value, self.kinds)]
            fix = f"--field one of {', '.join(known)}" if known else "mend it, or leave the file out"
            wanted = "text or messages" if list in self.kinds else "text"
            return Sample(where, problem=f"has no {wanted} in {self.field!r}", fix=fix)
        name = name_of(fields.get(self.id_field)) if self.id_field else where
        if not name:
            named = columns or [name for name, value in fields.items() if name_of(value)]
            others = ", ".join(name for name in named if name not in (self.field, self.id_field))
            give = f"--id one of {others}" if others else "name it"
            fix = f"{give}, or leave --id out: its place names it then"
            return Sample(where, problem=f"has no {self.id_field!r} to name it", fix=fix)
        return Sample(where, whole(content) if isinstance(content, str) else content or "", name)


def lines(path: Path) -> Iterator[tuple[str, Any, str]]:
    """Of each line of JSON its place, its value, and why it has none; empty lines are none."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if raw.strip():
                yield f"{path}:{number}", *parsed(raw)


def parsed(raw: bytes) -> tuple[Any, str]:
    """The value that some JSON spells, and why there is none; empty if there is one."""
    try:
        return json.loads(raw), ""
    except (ValueError, RecursionError) as error:
        return None, f"is not JSON: {error}"


def name_of(given: Any) -> str:
    """A sample's name out of its field: a number, or text that can be printed; else empty."""
    name = str(given) if isinstance(given, str | int) else ""
    return name if name.isprintable() else ""


def whole(text: str) -> str:
    """The text with a mark for each half of a character: JSON can spell one alone, UTF-8 can't."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _inside(folder: Path) -> Iterator[Path]:
    """All that a folder holds; unlike `rglob`, it doesn't pass over what it may not look into."""
    for entry in folder.iterdir():
        yield entry
        if entry.is_dir() and not entry.is_symlink():
            yield from _inside(entry)


def unreadable(path: Path, error: OSError) -> DataError:
    """What to say of a file that the system doesn't let us read."""
    reason = error.strerror or error
    return DataError(f"{path}: can't be read: {reason}\n    fix: let this user read it, or get it again")


def _text(path: Path) -> str | None:
    raw = path.read_bytes()
    if not raw or b"\0" in raw:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
