"""Who asks for which role, as tables of docs/settings.md: written again, or compared.

python -m tools.role_tables [--write]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from infra.gcp.roles import ACCOUNTS, Role, roles
from infra.outputs import camel_case
from tools.blocks import filled

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
_TITLES = (
    "A platform engineer, who brings layers up and down:",
    "An ML engineer:",
    "CI, which publishes and deploys:",
)


def tables() -> str:
    """A table for each account."""
    made = zip(_TITLES, ACCOUNTS, strict=True)
    return "\n\n".join(f"{title}\n\n{_table(account)}" for title, account in made)


def _table(account: str) -> str:
    return "\n".join(["| role | on | for |", "| --- | --- | --- |", *_rows(account)])


def _rows(account: str) -> Iterator[str]:
    for one in roles(account):
        yield f"| `{one.name}` | the {one.on} | {one.why}{_only(one)} |"


def _only(role: Role) -> str:
    return f"; only with `storage:{camel_case(role.setting)}`" if role.setting else ""


def main() -> None:
    """Writes the tables, or compares them."""
    before = PAGE.read_text(encoding="utf-8")
    after = filled(before, {"roles": tables()}, PAGE.name)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(after, encoding="utf-8")
    elif after != before:
        raise SystemExit(f"{PAGE.name} is out of date: make docs")


if __name__ == "__main__":
    main()
