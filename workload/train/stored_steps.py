"""Steps of a run in storage: which are complete, their checksums, their removal."""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from workload.errors import HopelessError, OutageError, StoreError
from workload.runs.errors import MissingObjectError
from workload.runs.store import Store
from workload.train import checksums
from workload.train.cluster import first_line

FOLDER = "checkpoints"
MARKER = "commit_success.txt"
_STEP = re.compile(rf"{FOLDER}/(\d+)/(.+)")
_REMOVED_AT_ONCE = 8  # objects; the client's connections less two


@dataclass(frozen=True)
class Steps:
    """Steps that have a folder, oldest first."""

    complete: tuple[int, ...]
    incomplete: tuple[int, ...]


def list_steps(store: Store) -> Steps:
    """List the steps in storage."""
    marked: dict[int, bool] = {}
    for name in store.list(f"{FOLDER}/"):
        if match := _STEP.fullmatch(name):
            step = int(match[1])
            marked[step] = marked.get(step, False) or match[2] == MARKER
    return Steps(
        complete=tuple(sorted(step for step, whole in marked.items() if whole)),
        incomplete=tuple(sorted(step for step, whole in marked.items() if not whole)),
    )


def refuse_lost_markers(store: Store, steps: Sequence[int]) -> None:
    """Raise HopelessError if incomplete steps have been complete.

    A kill leaves at most one step between its checksums and its marker; a run that ended had its last one.
    """
    names = set(store.list(""))
    written = [step for step in steps if f"{FOLDER}/{step}/{checksums.NAME}" in names]
    if len(written) > 1 or "final.json" in names:
        listed = ", ".join(map(str, steps))
        raise HopelessError(
            f"{store.url}/{FOLDER}: steps {listed} have no {MARKER}, but were complete: were they copied?\n"
            f"    fix: copy the run again, with its markers; or create an empty {MARKER} in each folder"
            " that is whole; or give the run another --name to begin anew"
        )


def read_checksums(store: Store, step: int) -> tuple[str | None, str]:
    """Read the checksums of a step.

    Returns:
        The object's text, None if there is none, and the reason why it can't be read, if it can't.

    Raises:
        OutageError: storage doesn't serve.
    """
    try:
        return store.read(f"{FOLDER}/{step}/{checksums.NAME}").decode(errors="replace"), ""
    except MissingObjectError:
        return None, ""
    except OutageError:
        raise
    except StoreError as error:
        return None, first_line(error)


def remove_step(store: Store, step: int) -> None:
    """Remove a step, its marker first: a crash then leaves an incomplete step."""
    store.delete(f"{FOLDER}/{step}/{MARKER}")
    names = store.list(f"{FOLDER}/{step}/")
    with ThreadPoolExecutor(_REMOVED_AT_ONCE, "remove") as pool:
        list(pool.map(store.delete, names))
