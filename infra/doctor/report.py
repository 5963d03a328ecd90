"""Checks run at once, and what they found: one that nobody answers is unknown, and hides no other."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from infra.doctor.finding import MISSING, OK, OPTIONAL, Finding, table
from infra.engine.roles import with_roles
from infra.errors import InfraError
from infra.google.client import RequestError

UNKNOWN = "unknown"
_AT_ONCE = 8
Check = Callable[[str], Iterator[Finding]]
"""Check that yields its findings, given its name."""


def run_checks(checks: Sequence[tuple[str, Check]]) -> list[Finding]:
    """Run named checks; return their findings in their order."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [finding for found in pool.map(lambda one: _answered(*one), checks) for finding in found]


def told(findings: Sequence[Finding]) -> str:
    """Format the findings, and a last line on those that are missing."""
    ends = [
        f"{len(some)} {state}: {', '.join(dict.fromkeys(some))}"
        for state in (MISSING, UNKNOWN)
        if (some := [one.what for one in findings if one.state == state])
    ]
    return f"{table(_merged(findings))}\n\n{'; '.join(ends) or 'nothing is missing'}"


def _merged(findings: Sequence[Finding]) -> list[Finding]:
    """Merge the unknown findings of one cause."""
    found = [one for one in findings if one.state != UNKNOWN]
    causes: dict[str, list[Finding]] = {}
    for one in findings:
        if one.state == UNKNOWN:
            causes.setdefault(one.fix or one.found, []).append(one)
    for fix, some in causes.items():
        checks = ", ".join(one.what for one in some)
        missing = next((one.what for one in found if one.state == MISSING and one.fix == fix), None)
        endings = {one.found.rpartition(": ")[2] for one in some}
        if missing:
            found.append(Finding(f"{len(some)} checks", UNKNOWN, f"until there is a {missing}: {checks}"))
        elif len(some) > 1 and len(endings) == 1:
            found.append(Finding(f"{len(some)} checks", UNKNOWN, f"{endings.pop()}: {checks}", some[0].fix))
        else:
            found += some
    return found


def healthy(findings: Sequence[Finding]) -> bool:
    """Return True if every check was answered and nothing is missing."""
    return all(one.state in (OK, OPTIONAL) for one in findings)


def _answered(what: str, check: Check) -> list[Finding]:
    found: list[Finding] = []
    try:
        found.extend(check(what))
    except RequestError as error:
        failure = error.failure
        about = f" ({failure.about})" if failure.about else ""
        found.append(
            Finding(what, UNKNOWN, f"{failure.kind}{about}: {failure.message}", with_roles(failure.fix))
        )
    except InfraError as error:
        output, _, fix = with_roles(str(error)).partition("\n    fix: ")
        found.append(Finding(what, UNKNOWN, output, fix or "pulumi login, where that isn't done"))
    return found
