"""An extraction that is killed at a storage request or at an instant, and continues."""

from __future__ import annotations

import signal
import threading

from tests.proofs.killing import Proof


class Extractions:
    """Runs of one small stream, each its own name, against the undisturbed one."""

    def __init__(self, proof: Proof):
        self._proof = proof
        done = proof.do("extract", "whole")
        assert done["status"] == 0, done
        self.requests: list[str] = done["requests"]
        self.shards: int = done["result"]["shards"]
        self.whole = self._kept("whole")

    def at_request(self, number: int, before: bool) -> str:
        """Kills one just before or after a request and starts it again; returns the request.

        Raises:
            AssertionError: nobody was killed, or it didn't come to what the undisturbed one did.
        """
        run = f"{'before' if before else 'after'}-{number}"
        done = self._proof.do("extract", run, number, before)
        assert done["status"] == signal.SIGKILL, f"{run}: nobody was killed ({done})"
        request = self._proof.front.killed
        self._goes_on(run, request)
        return request

    def at_instant(self, number: int, after_s: float) -> bool:
        """Kills one so long after its begin, if it lasts so long, and starts it again."""
        run = f"instant-{number}"
        timer = threading.Timer(after_s, self._proof.front.kill)
        done = self._proof.do("extract", run, began=timer.start)
        timer.cancel()
        killed = bool(done["status"] == signal.SIGKILL)
        assert killed or done["status"] == 0, done
        self._goes_on(run, f"after {after_s:.3f} s")
        return killed

    def _goes_on(self, run: str, killed_at: str) -> None:
        done = self._proof.do("extract", run)
        assert done["status"] == 0, f"{run}, {killed_at}: {done}"
        assert done["result"]["shards"] == self.shards
        stored = self._kept(run)
        assert stored == self.whole, f"{run}, {killed_at}: {sorted(stored.items() ^ self.whole.items())}"

    def _kept(self, run: str) -> dict[str, str]:
        """Return the final objects; each shard has a single version."""
        objects = self._proof.objects(run)
        twice = {
            name: versions for name, versions in objects.items() if "/tpu_" in name and len(versions) > 1
        }
        assert not twice, twice
        return {name: versions[-1] for name, versions in objects.items() if not name.startswith("leases/")}
