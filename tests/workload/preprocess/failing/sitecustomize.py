"""On PYTHONPATH, makes the first task that has written a shard's tokens fail; $FAILED_ONCE is a file then."""

import os
from contextlib import suppress

from workload.runs.store import FolderStore

_create = FolderStore.create


def create(self: FolderStore, name: str, content: bytes) -> bool:
    created = _create(self, name, content)
    if name.startswith("tokens-"):
        with suppress(FileExistsError):
            os.close(os.open(os.environ["FAILED_ONCE"], os.O_CREAT | os.O_EXCL))
            raise OSError("this task's machine is gone")
    return created


FolderStore.create = create  # type: ignore[method-assign]
