"""Write the generated blocks of the pages in PAGES again; --check fails where they are old.

make docs

Other documents have generators of their own, which this one calls with --write: see OTHERS.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402

from cli.__main__ import COMMANDS, SUBCOMMANDS  # noqa: E402
from infra.catalog import CATALOG, SliceType  # noqa: E402
from infra.catalog.book import BOOK, Entry  # noqa: E402
from infra.core.outputs import declared  # noqa: E402
from infra.engine.registry import layers  # noqa: E402
from infra.layers.monitoring.alerts import ALERTS  # noqa: E402
from infra.layers.monitoring.metrics import METRICS  # noqa: E402
from infra.policy import RULES  # noqa: E402
from tools import gke_inputs, pipeline_grants, role_tables, rooms, scenario_docs, update_kills  # noqa: E402
from tools import provider_docs as document  # noqa: E402
from tools.blocks import filled  # noqa: E402
from tools.settings_tables import tables  # noqa: E402
from views.table import markdown  # noqa: E402
from workload.model.points import ELSEWHERE, END_POINTS, POINTS  # noqa: E402

DOCS = ROOT / "docs"
OTHERS = (
    "tools.config_tables",
    "benchmarks.page",
    "tools.fleet_docs",
)


def prices() -> str:
    """Return a price for each slice type, in the region of `dev`, and where the prices are from."""
    region = CATALOG.prices["us-east5"]

    def row(kind: SliceType) -> tuple[str, ...]:
        hourly = [None if item is None else item * kind.chips for item in (region.on_demand, region.spot)]
        cells = [f"{price:,.2f}" if price is not None else "unknown" for price in hourly]
        daily = f"{hourly[0] * 24:,.0f}" if hourly[0] is not None else "unknown"
        return (kind.name, kind.topology, str(kind.chips), str(kind.hosts), *cells, daily)

    head = "type", "topology", "chips", "hosts", "on demand $/h", "spot $/h", "on demand $/day"
    lines = markdown(head, map(row, CATALOG.types), range(2, 7))
    source = (
        f"us-east5, chips × price, read {CATALOG.prices_read}: {CATALOG.prices_source}. Spot prices move."
    )
    return "\n".join([*lines, "", source])


def price_book() -> str:
    """Every price, and where each was read."""
    sources = list(dict.fromkeys(entry.source for entry in BOOK.entries.values()))

    def row(entry: Entry) -> tuple[str, ...]:
        by_price: dict[float, list[str]] = {}
        for region, price in entry.regions.items():
            by_price.setdefault(price, []).append(region)
        shown = [f"{_digits(price)} ({', '.join(where)})" for price, where in by_price.items()]
        shown += [_digits(entry.everywhere)] if entry.everywhere is not None else []
        if entry.likewise:
            first = next(iter(entry.regions.values()))
            shown.append(f"~{_digits(first)} ({', '.join(entry.likewise)})")
        state = "read" if entry.checked else "unverified" if entry.known else "unknown"
        price = "; ".join(shown) or "unknown"
        return entry.service, entry.what, entry.unit, price, state, f"{sources.index(entry.source) + 1}"

    lines = markdown(("service", "what", "per", "$", "", "source"), map(row, BOOK.entries.values()), (5,))
    return "\n".join([*lines, "", *(f"{number}. {source}." for number, source in enumerate(sources, 1))])


def _digits(price: float) -> str:
    """Return a price without zeros at its end: many are below a cent."""
    return f"{price:.9f}".rstrip("0").rstrip(".")


def commands() -> str:
    """Every command of `tpu`."""
    rows = [(f"`tpu {name} …`", part.about) for name, part in {**COMMANDS, **SUBCOMMANDS}.items()]
    return "\n".join(markdown(("command", "what it does"), rows))


def points() -> str:
    """Every point of a forward pass, its shape, and what others call it."""
    rows = []
    for name, axes in POINTS.items():
        lens, module = ELSEWHERE[name]
        layer = "" if name in END_POINTS else ".N"
        rows.append((f"`{name}{layer}`", axes[3:], f"`{lens}`", module or "none: after rotation"))
    head = "point", "axes", "TransformerLens, below `blocks.N`", "transformers, below `model.layers.N`"
    return "\n".join(markdown(head, rows))


def outputs() -> str:
    """Return the outputs of each stack."""
    rows = [
        (layer.name, item.key, f"{item.per} → {item.about}" if item.per else item.about)
        for layer in layers()
        for item in declared(layer.outputs).values()
    ]
    return "\n".join(markdown(("stack", "output", "value"), rows))


def policy_rules() -> str:
    """Every rule, with the same one of checkov and of the CIS benchmark."""
    named = sum("CKV" in rule.maps for rule in RULES)
    reasons = len(yaml.safe_load((ROOT / "tests/infra/policy/checkov.yaml").read_text(encoding="utf-8")))
    counted = (
        f"{len(RULES)} rules, {named} of which name a check of checkov's. Of checkov's own checks {reasons} "
        "find something in\nthe layers, each with a reason (tests/infra/policy/checkov.yaml)."
    )
    rows = [(rule.id, rule.about, rule.fix, rule.maps) for rule in RULES]
    return "\n".join([counted, "", *markdown(("rule", "what holds", "declare", "as"), rows)])


def alerts() -> str:
    """Every alert, with what it fires by and its page."""
    rows = []
    for alert in ALERTS:
        fires = f"{'less' if alert.below else 'more'} than {alert.threshold:g} {alert.unit}"
        page = f"[{alert.name}](runbooks/{alert.name}.md)"
        rows.append((page, alert.severity, alert.means, fires, f"{alert.low:g} to {alert.high:g}"))
    head = "alert", "severity", "means", "fires by", "the number may be"
    return "\n".join([f"{len(ALERTS)} alerts.", "", *markdown(head, rows)])


def metrics() -> str:
    """Every metric of the logs."""
    rows = []
    for metric in METRICS:
        kind = f"distribution, {metric.unit}" if metric.value else "count"
        about = f"{metric.about}{'; only on chips' if metric.hardware else ''}"
        rows.append((metric.name, kind, ", ".join(metric.labels) or "none", about))
    return "\n".join(markdown(("metric", "kind", "labels", "what"), rows))


def policy_count() -> str:
    """Return the number of rules, as the README states it."""
    return (
        f"[{len(RULES)} rules](docs/policy.md) hold for every resource of every stack: the program checks "
        "them in each preview and\nupdate, tests break each of them, and checkov audits the same stacks from "
        "outside."
    )


PAGES: dict[Path, dict[str, Callable[[], str]]] = {
    ROOT / "README.md": {"policy": policy_count},
    DOCS / "cli.md": {"commands": commands},
    DOCS / "guides" / "infrastructure.md": {"prices": prices},
    DOCS / "prices.md": {"book": price_book},
    DOCS / "extraction.md": {"points": points},
    DOCS / "architecture.md": {"outputs": outputs, "packages": rooms.table, "picture": rooms.picture},
    DOCS / "settings.md": {"tables": tables, "roles": role_tables.tables, "kills": update_kills.table},
    DOCS / "policy.md": {"rules": policy_rules},
    DOCS / "pipeline.md": {"grants": pipeline_grants.table},
    DOCS / "pipeline-grants.md": {"removed": pipeline_grants.removed},
    DOCS / "monitoring.md": {"alerts": alerts, "metrics": metrics},
    DOCS / "gke.md": {"inputs": gke_inputs.table},
    DOCS / "rehearsal.md": {
        "rehearsal commands": scenario_docs.commands,
        "scenarios": scenario_docs.scenarios,
        "scenario fields": scenario_docs.fields,
        "scenario steps": scenario_docs.step_table,
    },
    DOCS / "standin.md": {"types": document.types, "functions": document.functions},
}


def written(page: Path) -> str:
    """Return a page with all its blocks recreated."""
    blocks = {name: make() for name, make in PAGES[page].items()}
    return filled(page.read_text(encoding="utf-8"), blocks, page.name)


def main(arguments: list[str]) -> int:
    """Write, or compare."""
    old = [page for page in PAGES if written(page) != page.read_text(encoding="utf-8")]
    if "--check" in arguments:
        for page in old:
            print(f"{page.name}'s generated blocks are out of date: run 'make docs'", file=sys.stderr)
        return int(bool(old))
    for page in old:
        page.write_text(written(page), encoding="utf-8")
    for module in OTHERS:
        subprocess.run([sys.executable, "-m", module, "--write"], cwd=ROOT, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
