"""Mutants of the emulated cloud and of the stacks, each tried by the tests that run what it changes.

A copy of the tree per process; a record, kept by content, of the lines that each test runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.publish.wheels import cache_dir
from tests.proofs.forked import TIMED_OUT
from tests.proofs.recorder import SHARED
from tests.proofs.sites import ROOT, Site

TESTS = ("tests/rehearsal/cloud", "tests/infra", "tests/rehearsal/hosts/test_firewall.py")
DECLARED = Path(__file__).with_name("survivors.toml")
AT_ONCE = 2
_OPTIONS = ("-x", "-q", "-n", "0", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:randomly")
_FAILED, _NONE_LEFT = 1, 5
_AT_IMPORT_S = 60.0  # of the likeliest tests, for what every test may depend on

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: `noticed` by a test, `declared` with a reason, `survived`, or `unrun`."""

    site: Site
    came_to: str
    by: str
    took_s: float


class Tree:
    """A copy of what git has or would take, and a process that runs pytest in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(
            ["cp", "-a", "--parents", "-t", str(folder), "--", *filter(None, names.decode().split("\0"))],
            cwd=ROOT,
            check=True,
        )
        (folder / ".venv").symlink_to(ROOT / ".venv")
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
        self._server = subprocess.Popen(
            [sys.executable, "tests/proofs/forked.py"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": "", "TPU_CACHE": str(cache_dir())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def pytest(self, arguments: Sequence[str], timeout_s: float, **environment: str) -> tuple[int, str]:
        """Exit status and the end of the output."""
        order = {"arguments": [*_OPTIONS, *arguments], "timeout_s": timeout_s, "environment": environment}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        return answer["status"], answer["output"]

    @contextmanager
    def mutated(self, site: Site) -> Iterator[None]:
        """The tree with the change."""
        path = self.folder / site.path
        before, source = path.stat(), path.read_text()
        path.write_text(site.applied(source))
        try:
            yield
        finally:
            path.write_text(source)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def close(self) -> None:
        """End its process."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()


class Trees:
    """So many trees, each lent to one job at a time."""

    def __init__(self, folder: Path, count: int) -> None:
        self._idle: queue.Queue[Tree] = queue.Queue()
        self._all = []
        for number in range(count):
            (folder / str(number)).mkdir()
            self._all.append(tree := Tree(folder / str(number)))
            self._idle.put(tree)

    @contextmanager
    def lent(self) -> Iterator[Tree]:
        """One that nobody else has."""
        tree = self._idle.get()
        try:
            yield tree
        finally:
            self._idle.put(tree)

    def close(self) -> None:
        """End their processes."""
        for tree in self._all:
            tree.close()


@contextmanager
def trees(count: int = AT_ONCE) -> Iterator[Trees]:
    """Copies of the tree, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        lent = Trees(Path(name), count)
        try:
            yield lent
        finally:
            lent.close()


class Coverage:
    """Which tests run a line, and how long each takes; kept by content of a test module and the source."""

    def __init__(self, lent: Trees, say: Say, only: Sequence[str] = TESTS) -> None:
        modules = sorted(
            path
            for one in only
            for path in ([ROOT / one] if one.endswith(".py") else (ROOT / one).rglob("test_*.py"))
        )
        source = hashlib.sha256()
        for path in sorted([*ROOT.glob("rehearsal/**/*.py"), *ROOT.glob("infra/**/*.py")]):
            source.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
        self.texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in modules}
        self._folder = cache_dir("lines-of-tests", source.hexdigest()[:16])
        self.records: dict[str, Any] = {}
        each(modules, lambda path: self._record(lent, path, say))

    def _record(self, lent: Trees, path: Path, say: Say) -> None:
        module = path.relative_to(ROOT).as_posix()
        stored = self._folder / f"{hashlib.sha256(module.encode() + path.read_bytes()).hexdigest()[:16]}.json"
        if not stored.exists():
            part = stored.with_suffix(".part")
            with lent.lent() as tree:
                arguments = [module, "--maxfail=100", "-p", "tests.proofs.recorder"]
                status, output = tree.pytest(arguments, 200, RECORD_TO=str(part))
            if status not in (0, _FAILED) or not part.exists():
                say(f"{module}: no record, pytest ended with {status}: {output[-200:]}")
                return
            part.replace(stored)
            say(f"{module}: its lines are on record")
        self.records[module] = json.loads(stored.read_text())

    def tests(self, site: Site) -> list[str]:
        """Tests that run the site, those first that share the most words with it, then the quickest.

        What runs at import alone is looked for in the modules that run more of its file, or name it.
        """
        words = set(re.findall(r"\w{4,}", f"{site.old} {Path(site.path).stem} {site.function}".lower()))
        words |= set(re.findall(r"\w{4,}", site.function.replace("_", " ").lower()))
        lines, found = set(range(site.line, site.last + 1)), {}
        for module, record in self.records.items():
            by_test, took_s = record["lines"], record["took_s"]
            shared = lines & set(by_test.get(SHARED, {}).get(site.path, ()))
            text = self.texts[module].lower()
            likely = sum(word in text for word in words)
            stem = Path(site.path).stem in text
            for test, seconds in took_s.items():
                ran = by_test.get(test, {}).get(site.path, ())
                if lines.intersection(ran):
                    found[test] = (-100 - likely, seconds)
                elif (shared and (likely or ran)) or (site.function == "module" and (ran or stem)):
                    found[test] = (-likely, seconds)
        first = sorted(found, key=lambda test: found[test])
        return first if site.function != "module" else self._within(first, _AT_IMPORT_S)

    def _within(self, tests: Sequence[str], budget_s: float) -> list[str]:
        """The first of them, as many as take no longer than this."""
        chosen: list[str] = []
        for test in tests:
            budget_s -= self.took_s([test])
            if budget_s < 0 and chosen:
                break
            chosen.append(test)
        return chosen

    def took_s(self, tests: Sequence[str]) -> float:
        """How long these take, one after another."""
        return sum(self.records[test.partition("::")[0]]["took_s"][test] for test in tests)


def each(items: Sequence[Any], work: Callable[[Any], None]) -> None:
    """Work on every item, as many at once as there are trees; what is raised is raised."""
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    errors: list[BaseException] = []
    for item in items:
        waiting.put(item)

    def drain() -> None:
        while not errors:
            try:
                work(waiting.get_nowait())
            except queue.Empty:
                return
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=drain) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def declared() -> dict[tuple[str, str, str, str], str]:
    """Survivors that are known, with why."""
    listed = tomllib.loads(DECLARED.read_text()).get("survivor", [])
    return {(one["path"], one["function"], one["operator"], one["old"]): one["why"] for one in listed}


def stale(sites: Sequence[Site]) -> list[str]:
    """Declared survivors that are no site any more."""
    there = {site.name for site in sites}
    return [" | ".join(name) for name in declared() if name not in there]


def tried(sites: Sequence[Site], lent: Trees, coverage: Coverage, say: Say) -> list[Outcome]:
    """Every mutant by its tests; a declared one too, since it may be noticed by now."""
    outcomes: list[Outcome] = []
    reasons = declared()

    def attempt(site: Site) -> None:
        tests, begun = coverage.tests(site), time.monotonic()
        status, output = _NONE_LEFT, ""
        with lent.lent() as tree, tree.mutated(site):
            for of_folder in _by_folder(tests):
                timeout_s = 60 + 10 * coverage.took_s(of_folder)
                status, output = tree.pytest(of_folder, timeout_s)
                if status not in (0, _NONE_LEFT):
                    break
        by = next(iter(re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)), f"status {status}")
        if status not in (0, _NONE_LEFT):
            came_to, by = "noticed", "timeout" if status == TIMED_OUT else by
        else:
            came_to, by = "survived", f"{len(tests)} tests passed"
            if site.name in reasons:
                came_to, by = "declared", reasons[site.name]
        outcomes.append(Outcome(site, came_to, by, round(time.monotonic() - begun, 1)))
        say(f"{len(outcomes)}/{len(sites)} {came_to}: {site} [{by}, {outcomes[-1].took_s} s]")

    each(sites, attempt)
    return outcomes


def _by_folder(tests: Sequence[str]) -> list[list[str]]:
    """A run for each folder: their conftest modules have the same name."""
    found: dict[str, list[str]] = {}
    for test in tests:
        found.setdefault(test.partition("::")[0].rpartition("/")[0], []).append(test)
    return list(found.values())


def table(outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    """Counts by part and operator."""
    rows: dict[str, Counter[str]] = {}
    for one in sorted(outcomes, key=lambda one: (one.site.part, one.site.operator)):
        rows.setdefault(f"{one.site.part} | {one.site.operator}", Counter())[one.came_to] += 1
    return {name: dict(row) for name, row in rows.items()}


def found(options: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """A sample, or all, or those of one place, tried; SystemExit where one survives or a reason is stale."""
    from tests.proofs import sites as of_sites

    begun, known = time.monotonic(), of_sites.every()
    if places := options["site"]:
        chosen = [site for site in known if {site.path, f"{site.path}:{site.line}"} & set(places)]
    else:
        chosen = known if options["all"] else of_sites.sample(known, options["each"], options["seed"])
    if options["list"]:
        raise SystemExit("\n".join(map(str, chosen)))
    with trees() as lent:
        outcomes = tried(chosen, lent, Coverage(lent, say), say)
    gone = stale(known)
    noticed = [str(one.site) for one in outcomes if one.came_to == "noticed" and one.site.name in declared()]
    return {
        "sites": len(known),
        "tried": len(outcomes),
        "table": table(outcomes),
        "survived": [str(one.site) for one in outcomes if one.came_to == "survived"],
        "declared": {str(one.site): one.by for one in outcomes if one.came_to == "declared"},
        "declared but gone or noticed": gone + noticed,
        "seconds": round(time.monotonic() - begun, 1),
    }
