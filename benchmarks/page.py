"""The tables of docs/benchmarks.md from results/*.json, and the picture of the side by side.

`python -m benchmarks page` writes them; the words between the tables are written by hand.
"""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tools.blocks import filled

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"
PAGE, PICTURE = DOCS / "benchmarks.md", DOCS / "benchmarks-small.svg"
Result = dict[str, Any]
OF_REQUESTS = {
    "refused_by_description": "of all, refused by Google's descriptions of its APIs",
    "errors": "of all, answered with 503",
    "stock_outs": "creations that ended in a stock-out",
    "healthy_deleted": "deletions that found the node READY",
}
FLEETS = (
    "reconciler", "reconciler, other zones allowed", "serial loop", "reconciler, over the API",
    "serial loop, over the API",
)  # fmt: skip


def written() -> dict[Path, str]:
    """The page with its tables made anew, and the picture."""
    results = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in TABLES}
    blocks = {
        name: "\n".join([*table(results[name]), "", *_machine(results[name])])
        for name, table in TABLES.items()
    }
    return {PAGE: filled(PAGE.read_text(), blocks, PAGE.name), PICTURE: picture(results["small"])}


def write() -> None:
    """Writes them."""
    for path, text in written().items():
        path.write_text(text)


def _memory(result: Result) -> list[str]:
    return [
        "| examples a chip | trainer | arguments and heap, GiB | of it arguments | exchanged a step, GB |",
        "| ---: | --- | ---: | ---: | ---: |",
        *(
            f"| {one['examples']} | {one['trainer']} | {one['total_gib']:.2f} | {one['arguments_gib']:.2f}"
            f" | {one['exchanged_gb']:.2f} |"
            for one in result["rows"]
        ),
    ]


def _small(result: Result) -> list[str]:
    rates = sorted(result["tokens_per_s"].items(), key=lambda entry: -entry[1]["median"])
    return [
        "| trainer | tokens/s, median | range | ours is faster by |",
        "| --- | ---: | ---: | ---: |",
        *(
            f"| {name} | {rate['median']:,.0f} | {rate['min']:,.0f} to {rate['max']:,.0f}"
            f" | {result['tokens_per_s']['ours']['median'] / rate['median']:.2f} |"
            for name, rate in rates
        ),
    ]


def _saves(result: Result) -> list[str]:
    stall, size = result["stall_share"], result["bytes_a_parameter"]
    return [
        "| | goal | median | range |",
        "| --- | ---: | ---: | ---: |",
        f"| share of the time that training stands still | {result['stall_share_at_most']:.0%}"
        f" | {stall['median']:.2%} | {stall['min']:.2%} to {stall['max']:.2%} |",
        f"| bytes written a parameter | {12 * 1.02:.2f} | {size['median']:.3f}"
        f" | {size['min']:.3f} to {size['max']:.3f} |",
    ]


def _loader(result: Result) -> list[str]:
    return [
        "| what the chips of a host take | goal, times | slowest run, times |",
        "| --- | ---: | ---: |",
        *(
            f"| {name} | {result['goal_times_needed']} | {times:,.0f} |"
            for name, times in result["times_needed"].items()
        ),
    ]


def _restarts(result: Result) -> list[str]:
    def row(title: str, of: Result) -> str:
        cells = (
            f"{of[kind]['median']:.1f} ({of[kind]['min']:.1f} to {of[kind]['max']:.1f})"
            for kind in ("without", "with")
        )
        return f"| {title} | {' | '.join(cells)} |"

    return [
        "| seconds, median (range) | without the compiled step | with it |",
        "| --- | ---: | ---: |",
        row("from the start of the process to the end of its first step", result["first_step_s"]),
        row("of it tracing and compiling, or reading", result["compile_s"]),
    ]


def _fleet(result: Result) -> list[str]:
    def row(name: str, of: Result) -> str:
        recovery, requests = of["recovery_s"], of["requests"]
        cells = [
            f"{of['available']:.1%}",
            *(f"{recovery[key] / 60:,.0f}" for key in ("median", "p95", "longest")),
            f"{of['recovered']:,} of {of['lost']:,}",
            f"{of['healthy_deleted']:,}",
            f"{requests['looks']:,}",
            f"{requests['creates']:,} ({requests['creates_refused']:,} refused)",
        ]
        return f"| {name} | {' | '.join(cells)} |"

    return [
        "| | slices READY | min to recovery, median | 95 % | longest | recovered"
        " | healthy ones deleted | lists or describes | creates |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(row(_titled(name, result[name]), result[name]) for name in FLEETS if name in result),
    ]


def _titled(name: str, of: Result) -> str:
    days = of.get("days", 7)
    return name if days == 7 else f"{name}, {days:g} of the 7 days"


def _fleet_requests(result: Result) -> list[str]:
    """What was asked of the emulated cloud, by method, and of what it says of deletions."""
    runs = {name: result[name] for name in FLEETS if "methods" in result.get(name, {})}
    if not runs:
        return []
    methods = sorted({method for run in runs.values() for method in run["methods"]})

    def row(title: str, counts: Iterable[int]) -> str:
        return f"| {title} | {' | '.join(format(count, ',') for count in counts)} |"

    return [
        f"| requests over the API | {' | '.join(_titled(name, run) for name, run in runs.items())} |",
        f"| --- |{' ---: |' * len(runs)}",
        *(row(method, [run["methods"].get(method, 0) for run in runs.values()]) for method in methods),
        *(row(title, [run[key] for run in runs.values()]) for key, title in OF_REQUESTS.items()),
    ]


def _status(result: Result) -> list[str]:
    status = result.get("status")
    if status is None:
        return []
    return [
        f"| `fleet status` of {status['members']:,} | at most | median | range |",
        "| --- | ---: | ---: | ---: |",
        *(
            f"| {title} | {goal} | {one['median']:.2f} | {one['min']:.2f} to {one['max']:.2f} |"
            for title, goal, one in (
                ("seconds", f"{status['at_most_s']:.1f}", status["seconds"]),
                ("seconds of processor", "", status["processor_s"]),
            )
        ),
    ]


def _extraction(result: Result) -> list[str]:
    goals, overlap = result["goals"], result["E2"]

    def row(key: str, title: str, found: float, spread: Result | None = None) -> str:
        extent = f"{spread['min']:.3f} to {spread['max']:.3f}" if spread else ""
        return f"| {key} | {title} | {goals[key]:.2f} | {found:.3f} | {extent} |"

    capture = result["E1"]["ratio"]
    return [
        "| | | at most | median | range |",
        "| --- | --- | ---: | ---: | ---: |",
        row("E1", "forward with capture over bare forward", capture["median"], capture),
        *(
            row("E2", f"wall over slowest stage; {name} kept", one["ratio"]["median"], one["ratio"])
            for name, one in overlap.items()
        ),
        *(row("E3", f"stored over useful bytes; {name} kept", one) for name, one in result["E3"].items()),
        *(row("E4", f"places over tokens; {name}", one) for name, one in result["E4"].items()),
        row("E7", "bytes read over bytes wanted", result["E7"]["ratio"]),
    ]


def _ancestor(result: Result) -> list[str]:
    stored = result["E8"]
    return [
        f"| {stored['array_bytes'] / 1e6:.0f} MB of float32 arrays, written as | seconds, median | range | MB"
        " | ours is faster by |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(
            f"| {name} | {seconds['median']:.2f} | {seconds['min']:.2f} to {seconds['max']:.2f}"
            f" | {stored['bytes'][name] / 1e6:.0f} | {_times(stored['times_faster'].get(name))} |"
            for name, seconds in stored["seconds"].items()
        ),
    ]


def _times(factor: float | None) -> str:
    return f"{factor:.1f}" if factor else ""


def _capture(result: Result) -> list[str]:
    rates = sorted(result["tokens_per_s"].items(), key=lambda entry: -entry[1]["median"])
    return [
        f"| {result['tokens']:,} tokens in {result['documents']} documents | tokens/s, median | range"
        " | padding | ours is faster by |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(
            f"| {name} | {rate['median']:,.0f} | {rate['min']:,.0f} to {rate['max']:,.0f}"
            f" | {result['padding'][name]:.1%} | {_times(result['ours_is_faster_by'].get(name, 1.0))} |"
            for name, rate in rates
        ),
    ]


TABLES: dict[str, Callable[[Result], list[str]]] = {
    "memory": _memory,
    "small": _small,
    "saves": _saves,
    "loader": _loader,
    "restarts": _restarts,
    "fleet": lambda result: [*_fleet(result), "", *_fleet_requests(result), "", *_status(result)],
    "extraction": lambda result: [*_extraction(result), "", *_ancestor(result)],
    "capture": _capture,
}


def _machine(result: Result) -> list[str]:
    on = result["on"]
    versions = ", ".join(f"{name} {version}" for name, version in on["versions"].items())
    peers = "".join(f", {pin}" for pin in on.get("peers", {}).values())
    return [
        f"{on['day']}: {on['cores']} cores of {on['cpu']}, {on['memory_gib']} GiB, Python {on['python']},",
        f"{versions}{peers}; {result['took_s']} s.",
    ]


def picture(result: Result) -> str:
    """Bars of tokens a second with their range, as SVG."""
    rates = sorted(result["tokens_per_s"].items(), key=lambda entry: -entry[1]["median"])
    most = max(rate["max"] for _, rate in rates)
    left, width, row = 220, 460, 30
    parts = []
    for number, (name, rate) in enumerate(rates):
        y, scale = 10 + number * row, width / most
        color = "#1a73e8" if name == "ours" else "#9aa0a6"
        low, high = left + rate["min"] * scale, left + rate["max"] * scale
        parts += [
            f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{left}" y="{y}" width="{rate["median"] * scale:.1f}" height="20" fill="{color}"/>',
            f'<path d="M{low:.1f} {y + 10}H{high:.1f}" stroke="black"/>',
            f'<text x="{left + width + 8}" y="{y + 15}">{rate["median"]:,.0f}</text>',
        ]
    size = f'width="{left + width + 80}" height="{20 + len(rates) * row}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">'
    title = "<title>Tokens a second of a small model on CPU; the line is the range over rounds</title>"
    return "\n".join([head, title, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])


if __name__ == "__main__":
    if "--write" in sys.argv:
        write()
