"""Sandboxes of users' programs in Google's services: processes in a network of their own, as an account.

The metadata server knows each network by its address, so that a process gets tokens of its account and of no
other. They inherit nothing of the process that started the world.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rehearsal.cloud.core.clock import SANDBOXES
from rehearsal.cloud.machines.pods import PodGuests
from rehearsal.hosts.commands import run

# At Google the metadata server answers at once; here it shares two cores with all else.
_PATIENT = {"GCE_METADATA_TIMEOUT": "30"}
_LINES = 200  # of output in one request to Cloud Logging
_FLUSH_S = 0.5
_MAX_LINE_BYTES = 1 << 20
Lines = Callable[[Sequence[str]], Awaitable[None]]


class Sandboxes:
    """Factory of sandboxes. `environment`: variables of every process; `folder`: parent of their files."""

    def __init__(self, guests: PodGuests, folder: Path, environment: Mapping[str, str]) -> None:
        self._guests, self._folder, self._environment = guests, folder, dict(environment)
        self._numbers = itertools.count()

    @contextlib.asynccontextmanager
    async def open(self, name: str, account: str) -> AsyncIterator[Sandbox]:
        """Open a sandbox for processes of `account`, in a folder `name`; it is removed at the end."""
        place = self._folder / name
        (place / "home").mkdir(parents=True)
        try:
            with self.network(next(self._numbers), account) as (inside, address):
                yield Sandbox(place, inside, address, self._environment)
        finally:
            await asyncio.to_thread(run, ["rm", "-rf", "--one-file-system", place])

    @contextlib.contextmanager
    def network(self, number: int, account: str) -> Iterator[tuple[tuple[str, ...], str]]:
        """Create a network namespace on a wire of its own to Google's addresses.

        Yields the prefix of commands that run in it, and its address.
        """
        name, first = f"box{number}", number % 16384 * 4
        prefix = f"{SANDBOXES}{first // 256}"
        gateway, address = f"{prefix}.{first % 256 + 1}", f"{prefix}.{first % 256 + 2}"
        run(["ip", "netns", "add", name])
        try:
            run(["ip", "link", "add", f"v{name}", "type", "veth", "peer", "name", "eth0", "netns", name])
            run(["ip", "address", "add", f"{gateway}/30", "dev", f"v{name}"])
            run(["ip", "link", "set", f"v{name}", "up"])
            for line in (
                ["link", "set", "lo", "up"],
                ["address", "add", f"{address}/30", "dev", "eth0"],
                ["link", "set", "eth0", "up"],
                ["route", "add", "default", "via", gateway],
            ):
                run(["ip", "-n", name, *line])
            self._guests.enter(address, name, account)
            yield ("nsenter", f"--net=/run/netns/{name}", "--"), address
        finally:
            self._guests.drop(address)
            run(["ip", "netns", "delete", name])


@dataclass(frozen=True)
class Sandbox:
    """A sandbox. `place` is its folder, with `home` in it; `inside` the prefix of its commands."""

    place: Path
    inside: tuple[str, ...]
    address: str
    environment: Mapping[str, str]

    async def start(
        self,
        line: Sequence[str],
        variables: Mapping[str, str],
        folder: Path,
        stderr: int = asyncio.subprocess.STDOUT,
    ) -> asyncio.subprocess.Process:
        """Start a process that leads a session of its own; its output is piped."""
        return await asyncio.create_subprocess_exec(
            *self.inside, *line, cwd=folder, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            env={**_PATIENT, **self.environment, "HOME": str(self.place / "home"), **variables},
            stderr=stderr, start_new_session=True, limit=_MAX_LINE_BYTES,
        )  # fmt: skip

    async def run(self, line: Sequence[str], variables: Mapping[str, str], folder: Path, lines: Lines) -> int:
        """Run a program to its end; return its exit status. A cancellation kills all its processes."""
        process = await self.start(line, variables, folder)
        try:
            await copy(process.stdout, lines)
            return await process.wait()
        finally:
            kill(process)

    async def module(self, name: str, arguments: Sequence[str], lines: Lines) -> int:
        """Run a module of this program, as the account."""
        root = Path(__file__).resolve().parents[3]
        return await self.run([sys.executable, "-m", name, *arguments], {}, root, lines)

    async def output(self, name: str, arguments: Sequence[str]) -> tuple[int, list[str]]:
        """Run a module of this program; return its exit status and the lines that it printed."""
        printed: list[str] = []

        async def collect(output: Sequence[str]) -> None:
            printed.extend(output)

        return await self.module(name, arguments, collect), printed


async def copy(output: asyncio.StreamReader | None, lines: Lines) -> None:
    """Forward what a process prints, some lines at a time, until it is closed."""
    assert output is not None
    held: list[str] = []
    while True:
        line = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_S):
                line = await output.readline()
                if not line:
                    break
                held.append(line.decode(errors="replace").rstrip())
        if held and (not line or len(held) >= _LINES):
            await lines(held)
            held = []
    if held:
        await lines(held)


def kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process and its children, whose session it leads."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
