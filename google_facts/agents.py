"""Service agents: the accounts by which Google's services act in a project."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from google_facts import table

Made = Literal["enable", "identity", "get", "channel", "use"]
_SUFFIX = ".iam.gserviceaccount.com"


@dataclass(frozen=True)
class Agent:
    """A service agent.

    Attributes:
        domain: of its address.
        made: what makes it, as `agents.toml` explains.
        role: the one that Google grants it on the project; empty for none.
    """

    domain: str
    made: frozenset[Made]
    role: str

    def email(self, number: str) -> str:
        """Return the address of the agent in the project of this number."""
        return f"service-{number}@{self.domain}{_SUFFIX}"


def _agent(domain: str, made: list[Made], role: str = "", **_: str) -> Agent:
    return Agent(domain, frozenset(made), role)


AGENTS: Mapping[str, Agent] = MappingProxyType(
    {name: _agent(**block) for name, block in table("agents").items()}
)
"""Agents by the API that they are of: `storage`; a second one of an API has a longer name."""


def of_address(email: str) -> Agent | None:
    """Return the agent that has such an address in some project; None for other accounts."""
    domain = email.rpartition("@")[2].removesuffix(_SUFFIX)
    return next((agent for agent in AGENTS.values() if agent.domain == domain), None)


def is_googles(email: str) -> bool:
    """Return True for an address of a domain that only service agents have, also of agents not listed."""
    domain = email.rpartition("@")[2].removesuffix(_SUFFIX)
    return domain.startswith("gcp-sa-") or of_address(email) is not None
