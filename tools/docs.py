"""Blocks of the pages about commands, prices, layers, policy and fleets; tools/blocks.py writes them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import yaml

from cli.__main__ import COMMANDS, SUBCOMMANDS
from google_facts import table as facts
from infra.catalog import CATALOG
from infra.catalog.book import BOOK
from infra.core.outputs import declared
from infra.engine.registry import layers
from infra.engine.roles import ACCOUNTS
from infra.engine.roles import roles as roles_of
from infra.google.failures import FOR_PEOPLE, Kind, fix_of
from infra.layers.monitoring import alerts as alert_table
from infra.layers.monitoring import metrics as metric_table
from infra.policy import RULES, Rule
from infra.settings.spelling import camel_case
from tools.blocks import ROOT, table
from workload.model.points import ELSEWHERE, END_POINTS, POINTS
from workload.preflight import roofline

RESULTS = ROOT / "benchmarks" / "results"
MATRIX = RESULTS / "faults.json"
"""Result of `python -m tests.proofs matrix`."""


def commands() -> str:
    """Return every command of `tpu`."""
    parts = {**COMMANDS, **SUBCOMMANDS}
    return table(
        ("command", "what it does"), ((f"`tpu {name} …`", part.about) for name, part in parts.items())
    )


def listing(*paths: str) -> str:
    """Return YAML files of the checkout as blocks of code, each below its name."""
    files = [ROOT / path for path in paths]
    return "\n\n".join(
        f"`{file.name}`:\n\n```yaml\n{file.read_text(encoding='utf-8').rstrip()}\n```" for file in files
    )


def held_out() -> str:
    """Return the forecasts of published runs that preflight's method has not seen."""
    method = roofline.method()
    head = (
        "trainer",
        "model, tokens, slice",
        "measured:",
        "forecast:",
        "error:",
        "share of roofline:",
        "source",
    )
    rows = (
        (
            run.trainer,
            f"{run.model}, {run.length}, {run.slice}",
            f"{run.measured:,.0f}",
            f"{run.measured * (1 + method.error_on(run)):,.0f}",
            f"{method.error_on(run):+.1%}",
            f"{run.share:.2f}",
            run.source,
        )
        for run in method.held_out
    )
    return table(head, rows)


def prices() -> str:
    """Return the prices of each slice type in the region of `dev`, and their source."""
    region = CATALOG.prices["us-east5"]

    def dollars(chips: float, price: float | None, digits: int = 2) -> str:
        return "unknown" if price is None else f"{price * chips:,.{digits}f}"

    head = ("type", "topology", "chips:", "hosts:", "on demand $/h:", "spot $/h:", "on demand $/day:")
    rows = [
        (
            *(kind.name, kind.topology, kind.chips, kind.hosts),
            *(dollars(kind.chips, region.on_demand), dollars(kind.chips, region.spot)),
            dollars(kind.chips * 24, region.on_demand, 0),
        )
        for kind in CATALOG.types
    ]
    source = f"Prices in us-east5 (chips × price), read in {CATALOG.prices_read}: {CATALOG.prices_source}."
    return f"{table(head, rows)}\n\n{source} Spot prices change. `tpu plan` prices other regions."


def first_up() -> str:
    """Return the layers in their order: Google's time, the likely failure, and its next command."""
    lags = facts("lags")
    api, metric = (f"after {lags[name]['longest_s'] / 60:g} min" for name in ("api", "metric"))
    granted = ("a permission is missing: its role was granted just now", "`tpu up ENV` some minutes later")
    texts = {
        "storage": ("enabling APIs", f"`SERVICE_DISABLED` {api}", "`tpu up ENV`"),
        "builds": ("-", "a billing permission is missing", "run the command that the message prints"),
        "data": ("creating the disk from the snapshot", "no snapshot; quota of Hyperdisk ML",
                 "correct `data:snapshot`, or request quota"),
        "monitoring": ("new log-based metrics", f"`Cannot find metric(s) that match type` {metric}",
                       "`tpu up ENV`"),
        "network": ("-", *granted),
        "gke": ("creating the control plane, then pools", "`insufficient regional quota`",
                "request the quota that the message names"),
        "tpu": ("creating the slices", "\"no more capacity\"",
                "another zone in the settings; or `tpu up ENV` later"),
        "pipeline": ("building the function", "the build fails; \"cannot run builds in this region\"",
                     "read the build's log, `tpu up ENV`; or request build quota (step 2)"),
        "slurm": ("booting the controller and login nodes", granted[0],
                  f"{granted[1]}; if a machine doesn't answer, `tpu logs ENV slurm-ENV-controller`"),
        "queue": ("pulling images through Artifact Registry",
                  "a controller isn't ready; the message says why", "`tpu up ENV`"),
    }  # fmt: skip
    order = [layer.name for layer in layers()]
    assert texts.keys() == {*order}
    head = ("layer", "slow step", "likely failure", "fix")
    return table(head, ((name, *texts[name]) for name in order))


_LAG_KEYS = ("usual_s", "longest_s")


def google_lags() -> str:
    """Return how long Google's accepted changes take to hold, and how long the program waits."""
    texts = {
        "grant": "a granted role, or a changed custom role",
        "group": "a group membership",
        "account": "a new service account",
        "api": "an enabled API",
        "agent": "a new service agent, and the roles that Google gives it",
        "metric": "a new log-based metric",
    }
    blocks = facts("lags")
    assert texts.keys() == blocks.keys()
    return table(
        ("change", "takes effect after:", "`tpu` waits up to:", "source"),
        (
            (text, *(f"{blocks[name][key] / 60:g} min" if key in blocks[name] else "-" for key in _LAG_KEYS),
             f"[page]({blocks[name]['source']})")
            for name, text in texts.items()
        ),
    )  # fmt: skip


def price_book() -> str:
    """Return every price, with a numbered source."""
    sources = list(dict.fromkeys(entry.source for entry in BOOK.entries.values()))
    rows = []
    for entry in BOOK.entries.values():
        by_price: dict[float, list[str]] = {}
        for region, price in entry.regions.items():
            by_price.setdefault(price, []).append(region)
        shown = [f"{_digits(price)} ({', '.join(where)})" for price, where in by_price.items()]
        shown += [_digits(entry.everywhere)] if entry.everywhere is not None else []
        if entry.likewise:
            first = next(iter(entry.regions.values()))
            shown.append(f"~{_digits(first)} ({', '.join(entry.likewise)})")
        state = "read" if entry.checked else "unverified" if entry.known else "unknown"
        number = sources.index(entry.source) + 1
        rows.append((entry.service, entry.what, entry.unit, "; ".join(shown) or "unknown", state, number))
    listed = (f"{number}. {source}." for number, source in enumerate(sources, 1))
    return "\n".join([table(("service", "what", "per", "$", "status", "source:"), rows), "", *listed])


def _digits(price: float) -> str:
    """Format a price without zeros at its end: many are below a cent."""
    return f"{price:.9f}".rstrip("0").rstrip(".")


def points() -> str:
    """Return every point of a forward pass: its shape, and its names in two libraries."""
    head = ("point", "axes", "TransformerLens, below `blocks.N`", "transformers, below `model.layers.N`")
    rows = []
    for name, axes in POINTS.items():
        lens, module = ELSEWHERE[name]
        layer = "" if name in END_POINTS else ".N"
        rows.append((f"`{name}{layer}`", axes[3:], f"`{lens}`", module or "none: after rotation"))
    return table(head, rows)


def outputs() -> str:
    """Return the outputs of each stack."""
    rows = [
        (layer.name, output.key, f"{output.per} → {output.about}" if output.per else output.about)
        for layer in layers()
        for output in declared(layer.outputs).values()
    ]
    return table(("stack", "output", "value"), rows)


def roles() -> str:
    """Return the roles to request, in a table for each account."""
    titles = (
        "A platform engineer, who brings layers up and down (request only the rows of your layers):",
        "An ML engineer:",
        "CI, which publishes and deploys:",
    )
    parts = []
    for title, account in zip(titles, ACCOUNTS, strict=True):
        rows = []
        for role in roles_of(account):
            of = (role.name, role.on, role.setting)
            users = [
                layer.name
                for layer in layers()
                if any((same.name, same.on, same.setting) == of for same in layer.roles)
            ]
            owner, _, field = role.setting.rpartition(":")
            only = f"; only with `{owner or users[0]}:{_setting(field)}`" if field else ""
            cells = (f"`{role.name}`", f"the {role.on}", f"{role.why}{only}")
            rows.append((cells[0], ", ".join(users), *cells[1:]) if account == ACCOUNTS[0] else cells)
        head = ("role", "layer", "on", "for") if account == ACCOUNTS[0] else ("role", "on", "for")
        parts.append(f"{title}\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def _setting(of_role: str) -> str:
    name, _, value = of_role.partition("=")
    return f"{camel_case(name)}{f': {value}' if value else ''}"


def policy_rules() -> str:
    """Return every rule, with its counterparts of checkov and the CIS benchmark."""
    named = sum("CKV" in rule.maps for rule in RULES)
    reasons = len(yaml.safe_load((ROOT / "tests/infra/policy/checkov.yaml").read_text(encoding="utf-8")))
    counted = (
        f"{len(RULES)} rules; {named} of them match checks of checkov. checkov's own checks report {reasons} "
        "findings in\nthe layers, each accepted with a reason (tests/infra/policy/checkov.yaml)."
    )
    rows = ((rule.id, rule.about, rule.fix, rule.maps) for rule in sorted(RULES, key=_by_id))
    return f"{counted}\n\n{table(('rule', 'requirement', 'fix', 'same as'), rows)}"


def _by_id(rule: Rule) -> tuple[str, int]:
    letters = rule.id.rstrip("0123456789")
    return letters, int(rule.id.removeprefix(letters))


def policy_count() -> str:
    """Return the README's sentence about the rules."""
    page = "docs/reference/policy.md"
    return (
        f"Each preview and update checks every resource against [{len(RULES)} rules]({page}); for each rule "
        "a test\nshows that a violation is reported. The scanner checkov audits the stacks independently."
    )


def alerts() -> str:
    """Return every alert, with its threshold and its page."""
    rows = []
    declared = alert_table.of(layers())
    for alert in declared.values():
        page = f"[{alert.name}](../runbooks/{alert.name}.md)"
        fires = f"{'less' if alert.below else 'more'} than {alert.threshold:g} {alert.unit}"
        rows.append((page, alert.severity, alert.means, fires, f"{alert.low:g} to {alert.high:g}"))
    head = ("alert", "severity", "meaning", "default threshold", "allowed")
    return f"{len(declared)} alerts.\n\n{table(head, rows)}"


def metrics() -> str:
    """Return every metric of the logs."""
    rows = []
    for metric in metric_table.of(layers()):
        kind = f"distribution, {metric.unit}" if metric.value else "count"
        about = f"{metric.about}{'; only on chips' if metric.hardware else ''}"
        rows.append((metric.name, kind, ", ".join(metric.labels) or "none", about))
    return table(("metric", "kind", "labels", "what"), rows)


def failures() -> str:
    """Return each kind of failure of a request, with its retries and its fix."""
    rows = []
    for kind in Kind:
        again = "no" if kind in FOR_PEOPLE else "yes, with backoff"
        rows.append((kind, "yes, after 60 s" if kind is Kind.STACK else again, fix_of(kind)))
    return table(("failure", "retried", "what to do"), rows)


def faults() -> str:
    """Return the fault matrix: a row for each request, a column for each fault."""
    kinds: dict[tuple[str, str], dict[str, None]] = {}
    for cell in sorted(_cells(), key=lambda cell: bool(cell["lasts"])):
        kinds.setdefault((cell["method"], cell["fault"]), {})[cell["kind"]] = None
    methods, names = (list(dict.fromkeys(cell[key] for cell in _cells())) for key in ("method", "fault"))
    rows = ((method, *("; ".join(kinds.get((method, name), "–")) for name in names)) for method in methods)
    return table(("request", *names), rows)


def outcomes() -> str:
    """Return each outcome of a fault, with the kinds that the faults were classified as."""
    kinds: dict[tuple[str, ...], Counter[str]] = {}
    for cell in _cells():
        if cell["mended"] != "nothing to mend":
            kinds.setdefault((cell["then"], cell["truth"], cell["mended"]), Counter())[cell["kind"]] += 1
    rows = [(*words, count.total(), ", ".join(sorted(count))) for words, count in sorted(kinds.items())]
    fine = len(_cells()) - sum(count.total() for count in kinds.values())
    rows.append(("continues", "no action needed", "", fine, "all others"))
    head = ("the controller", "at Google meanwhile", "recovers with", "cells:", "classified as")
    return table(head, rows)


def _cells() -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(MATRIX.read_text(encoding="utf-8"))["cells"]
    return cells


def kills() -> str:
    """Return each killed `up` and `destroy`, with what the next command did about it."""
    head = {
        "layer": "layer", "verb": "killed", "then": "then", "requests": "its requests:", "kills": "kills:",
        "taken_in": "imported:", "dropped": "never made:", "gone": "gone:", "still_there": "still there:",
        "longest_s": "the next command, longest, s:",
    }  # fmt: skip
    stored = json.loads((RESULTS / "updates.json").read_text(encoding="utf-8"))
    return table(tuple(head.values()), ([row[key] for key in head] for row in stored["rows"]))
