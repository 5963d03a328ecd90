"""Order of the tests, and JAX's compilation cache.

Files that take long begin first, so that none of them is waited for at the end.
"""

import gc
import hashlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from infra.publish.cache import cache_dir
from workload import processor

ROOT = Path(__file__).parents[1]


def compiled_folder() -> Path:
    """Return the folder of JAX's compilation cache, which saves a fifth of a test run.

    Another processor or other packages have another folder.
    """
    packages = hashlib.sha256((ROOT / "requirements.txt").read_bytes()).hexdigest()[:16]
    return cache_dir("compiled-for-tests", f"{processor.key()}-{packages}")


def drop_halves(folder: Path) -> None:
    """Delete entries without an access time, left by processes that a test killed during a write.

    JAX limits the cache's size by these times and stores nothing more while one is missing.
    """
    for entry in folder.glob("*-cache"):
        if not entry.with_name(f"{entry.name.removesuffix('-cache')}-atime").exists():
            entry.unlink(missing_ok=True)


drop_halves(compiled_folder())

# Before anything imports JAX, which reads these once; programs that tests start inherit them.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(compiled_folder())
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(1 << 30)


# An example's time measures the machine's load, not the code.
hypothesis.settings.register_profile("project", deadline=None)
hypothesis.settings.load_profile("project")


# Each of xdist's workers collects all tests: a million objects, none of them garbage. Keep the collector away
# from them while they are made and afterwards.
gc.disable()


PROVED = ROOT / "tests" / "rehearsal" / "kubernetes"  # needs programs that take long to build


def pytest_itemcollected(item: pytest.Item) -> None:
    if PROVED in item.path.parents:
        item.add_marker(pytest.mark.prove)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", metavar="SEED", help="run files, and the tests of each, in random order")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if seed := config.getoption("--shuffle"):
        draw = random.Random(seed)
        files = {path: draw.random() for path in sorted({item.path for item in items})}
        draw.shuffle(items)
        items.sort(key=lambda item: files[item.path])
        return
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)  # stable: all else keeps its place


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Restore signals: a command that runs in this process installs its handlers for the rest of its life."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _environment_stays() -> Iterator[None]:
    """Undo changes of variables, such as JAX_PLATFORMS, by a command that ran in the test's own process."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update({name: text for name, text in before.items() if os.environ.get(name) != text})
