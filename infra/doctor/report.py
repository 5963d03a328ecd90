"""Concurrent checks and their findings; a check without an answer is unknown, and hides no other."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial

from infra.doctor.finding import MISSING, OK, OPTIONAL, Finding, table
from infra.engine.placeholders import filled
from infra.engine.roles import with_roles
from infra.errors import InfraError
from infra.google.client import Client, RequestError, member
from infra.settings.schema import Settings

UNKNOWN = "unknown"
_AT_ONCE = 8
Check = Callable[[str], Iterator[Finding]]
"""Check that yields its findings, given its name."""


def run_checks(checks: Sequence[tuple[str, Check]]) -> list[Finding]:
    """Run named checks; return their findings in their order."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [
            finding for findings in pool.map(lambda check: _answered(*check), checks) for finding in findings
        ]


def with_names(findings: Sequence[Finding], settings: Settings, google: Client) -> list[Finding]:
    """Return findings whose fixes name the environment, its project and the login, where that is known."""
    login = cache(partial(member, google))
    return [replace(finding, fix=filled(finding.fix, settings, login)) for finding in findings]


def format_report(findings: Sequence[Finding]) -> str:
    """Format the findings, and a last line on those that are missing."""
    ends = [
        f"{len(names)} {state}: {', '.join(dict.fromkeys(names))}"
        for state in (MISSING, UNKNOWN)
        if (names := [finding.what for finding in findings if finding.state == state])
    ]
    return f"{table(_merged(findings))}\n\n{'; '.join(ends) or 'nothing is missing'}"


def _merged(findings: Sequence[Finding]) -> list[Finding]:
    """Merge the unknown findings of one cause."""
    merged = [finding for finding in findings if finding.state != UNKNOWN]
    causes: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.state == UNKNOWN:
            causes.setdefault(finding.fix or finding.detail, []).append(finding)
    for fix, group in causes.items():
        checks = ", ".join(finding.what for finding in group)
        missing = next(
            (finding.what for finding in merged if finding.state == MISSING and finding.fix == fix), None
        )
        endings = {finding.detail.rpartition(": ")[2] for finding in group}
        if missing:
            merged.append(Finding(f"{len(group)} checks", UNKNOWN, f"until there is a {missing}: {checks}"))
        elif len(group) > 1 and len(endings) == 1:
            merged.append(
                Finding(f"{len(group)} checks", UNKNOWN, f"{endings.pop()}: {checks}", group[0].fix)
            )
        else:
            merged += group
    return merged


def healthy(findings: Sequence[Finding]) -> bool:
    """Return True if every check was answered and nothing is missing."""
    return all(finding.state in (OK, OPTIONAL) for finding in findings)


def _answered(what: str, check: Check) -> list[Finding]:
    findings: list[Finding] = []
    try:
        findings.extend(check(what))
    except RequestError as error:
        failure = error.failure
        about = f" ({failure.about})" if failure.about else ""
        findings.append(
            Finding(what, UNKNOWN, f"{failure.kind}{about}: {failure.message}", with_roles(failure.fix))
        )
    except InfraError as error:
        output, _, fix = with_roles(str(error)).partition("\n    fix: ")
        findings.append(Finding(what, UNKNOWN, output, fix or "pulumi login, where that isn't done"))
    return findings
