"""Delays until changes that Google has accepted hold everywhere: lags.toml."""

from dataclasses import dataclass

from google_facts import table


@dataclass(frozen=True)
class Lag:
    """A delay: as long as it typically takes, and as long as a client should wait; 0: it doesn't."""

    usual_s: float
    longest_s: float


def _lag(name: str) -> Lag:
    block = table("lags")[name]
    return Lag(block["usual_s"], block.get("longest_s", 0.0))


GRANT = _lag("grant")
"""Until a changed policy or custom role holds."""
GROUP = _lag("group")
"""Until a changed membership of a group holds."""
ACCOUNT = _lag("account")
"""Until a new service account can be read, named and used."""
API = _lag("api")
"""Until an API that was enabled answers."""
AGENT = _lag("agent")
"""Until a new service agent, or the role that Google gives it, counts."""
METRIC = _lag("metric")
"""Until Cloud Monitoring knows a new metric of logs."""
