"""The order of the tests, and what JAX compiled for earlier ones.

Files that take long begin first, so that none of them is waited for at the end.
"""

import gc
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from infra.publish.wheels import cache_dir
from workload import processor

ROOT = Path(__file__).parents[1]


def compiled_folder() -> Path:
    """Where this machine keeps what JAX compiled: a fifth of a test run is compiling the same steps again.

    Programs are found by their content. For another processor or other packages there is another folder.
    """
    packages = hashlib.sha256((ROOT / "requirements.txt").read_bytes()).hexdigest()[:16]
    return cache_dir("compiled-for-tests", f"{processor.key()}-{packages}")


def drop_halves(folder: Path) -> None:
    """Removes what a process left that a test killed while it stored a program: JAX, which limits the cache's
    size by the times beside its entries, stores nothing more while one lacks its own.
    """
    for entry in folder.glob("*-cache"):
        if not entry.with_name(f"{entry.name.removesuffix('-cache')}-atime").exists():
            entry.unlink(missing_ok=True)


drop_halves(compiled_folder())

# Before anything imports JAX, which reads these once; programs that tests start inherit them.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(compiled_folder())
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(1 << 30)


# How long an example may take says how busy the machine is, and nothing of the code.
hypothesis.settings.register_profile("project", deadline=None)
hypothesis.settings.load_profile("project")


# Each of xdist's workers collects all tests: a million objects, none of them garbage. Python's collector
# doesn't look through them while they are made, and leaves them alone afterwards.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)  # a stable sort: all else keeps its place


@pytest.fixture(autouse=True)
def _environment_stays() -> Iterator[None]:
    """A command run in a test's own process may set variables, such as JAX_PLATFORMS: undone here."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update({name: text for name, text in before.items() if os.environ.get(name) != text})
