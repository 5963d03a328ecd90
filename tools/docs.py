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
from tools import gke_inputs, pipeline_grants, role_tables, rooms, update_kills  # noqa: E402
from tools import provider_docs as document  # noqa: E402
from tools.blocks import filled  # noqa: E402
from tools.settings_tables import tables  # noqa: E402
from workload.model.points import ELSEWHERE, END_POINTS, POINTS  # noqa: E402

DOCS = ROOT / "docs"
OTHERS = (
    "tools.config_tables",
    "benchmarks.page",
    "tools.fleet_docs",
    "rehearsal.scenario.docs",
)


def prices() -> str:
    """A price for each slice type, in the region of `dev`, and where the prices are from."""
    region = CATALOG.prices["us-east5"]

    def row(kind: SliceType) -> str:
        hourly = [None if each is None else each * kind.chips for each in (region.on_demand, region.spot)]
        cells = [f"{price:,.2f}" if price is not None else "unknown" for price in hourly]
        daily = f"{hourly[0] * 24:,.0f}" if hourly[0] is not None else "unknown"
        cells = [kind.name, kind.topology, str(kind.chips), str(kind.hosts), *cells, daily]
        return "| " + " | ".join(cells) + " |"

    lines = [
        "| type | topology | chips | hosts | on demand $/h | spot $/h | on demand $/day |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
        *(row(kind) for kind in CATALOG.types),
    ]
    source = (
        f"us-east5, chips × price, read {CATALOG.prices_read}: {CATALOG.prices_source}. Spot prices move."
    )
    return "\n".join([*lines, "", source])


def price_book() -> str:
    """Every price, and where each was read."""
    sources = list(dict.fromkeys(one.source for one in BOOK.entries.values()))

    def row(one: Entry) -> str:
        by_price: dict[float, list[str]] = {}
        for region, price in one.regions.items():
            by_price.setdefault(price, []).append(region)
        shown = [f"{_digits(price)} ({', '.join(where)})" for price, where in by_price.items()]
        shown += [_digits(one.everywhere)] if one.everywhere is not None else []
        if one.likewise:
            first = next(iter(one.regions.values()))
            shown.append(f"~{_digits(first)} ({', '.join(one.likewise)})")
        state = "read" if one.checked else "unverified" if one.known else "unknown"
        cells = [one.service, one.what, one.unit, "; ".join(shown) or "unknown", state]
        return "| " + " | ".join([*cells, f"{sources.index(one.source) + 1}"]) + " |"

    lines = [
        "| service | what | per | $ | | source |",
        "| --- | --- | --- | --- | --- | ---: |",
        *map(row, BOOK.entries.values()),
        "",
        *(f"{number}. {source}." for number, source in enumerate(sources, 1)),
    ]
    return "\n".join(lines)


def _digits(price: float) -> str:
    """A price without zeros at its end: many are below a cent."""
    return f"{price:.9f}".rstrip("0").rstrip(".")


def commands() -> str:
    """Every command of `tpu`."""
    lines = ["| command | what it does |", "| --- | --- |"]
    lines += [f"| `tpu {name} …` | {about} |" for name, (_, about) in {**COMMANDS, **SUBCOMMANDS}.items()]
    return "\n".join(lines)


def points() -> str:
    """Every point of a forward pass, its shape, and what others call it."""
    lines = [
        "| point | axes | TransformerLens, below `blocks.N` | transformers, below `model.layers.N` |",
        "| --- | --- | --- | --- |",
    ]
    for name, axes in POINTS.items():
        lens, module = ELSEWHERE[name]
        layer = "" if name in END_POINTS else ".N"
        lines.append(f"| `{name}{layer}` | {axes[3:]} | `{lens}` | {module or 'none: after rotation'} |")
    return "\n".join(lines)


def outputs() -> str:
    """What each stack exports."""
    lines = ["| stack | output | value |", "| --- | --- | --- |"]
    for layer in layers():
        for one in declared(layer.outputs).values():
            lines.append(f"| {layer.name} | {one.key} | {f'{one.per} → ' if one.per else ''}{one.about} |")
    return "\n".join(lines)


def policy_rules() -> str:
    """Every rule, with the same one of checkov and of the CIS benchmark."""
    named = sum("CKV" in one.maps for one in RULES)
    reasons = len(yaml.safe_load((ROOT / "tests/infra/policy/checkov.yaml").read_text(encoding="utf-8")))
    counted = (
        f"{len(RULES)} rules, {named} of which name a check of checkov's. Of checkov's own checks {reasons} "
        "find something in\nthe layers, each with a reason (tests/infra/policy/checkov.yaml)."
    )
    lines = [counted, "", "| rule | what holds | declare | as |", "| --- | --- | --- | --- |"]
    lines += [f"| {one.id} | {one.about} | {one.fix} | {one.maps} |" for one in RULES]
    return "\n".join(lines)


def alerts() -> str:
    """Every alert, with what it fires by and its page."""
    lines = ["| alert | severity | means | fires by | the number may be |", "| --- | --- | --- | --- | --- |"]
    for one in ALERTS:
        fires = f"{'less' if one.below else 'more'} than {one.threshold:g} {one.unit}"
        page = f"[{one.name}](runbooks/{one.name}.md)"
        cells = (
            page,
            one.severity,
            one.means,
            fires,
            f"{one.low:g} to {one.high:g}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([f"{len(ALERTS)} alerts.", "", *lines])


def metrics() -> str:
    """Every metric of the logs."""
    lines = ["| metric | kind | labels | what |", "| --- | --- | --- | --- |"]
    for one in METRICS:
        kind = f"distribution, {one.unit}" if one.value else "count"
        about = f"{one.about}{'; only on chips' if one.hardware else ''}"
        lines.append(f"| {one.name} | {kind} | {', '.join(one.labels) or 'none'} | {about} |")
    return "\n".join(lines)


def policy_count() -> str:
    """How many rules there are, as the README has it."""
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
    DOCS / "standin.md": {"types": document.types, "functions": document.functions},
}


def written(page: Path) -> str:
    """A page with all its blocks recreated."""
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
