"""The tables of docs/benchmarks.md from results/*.json, and the picture of the side by side.

`python -m benchmarks page` writes them; the words between the tables are written manually.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tools.blocks import filled

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"
PAGE, PICTURE = DOCS / "benchmarks.md", DOCS / "benchmarks-small.svg"
Result = dict[str, Any]


def block(name: str) -> str:
    """Return the table of a result, and the machine that it was measured on."""
    result = _result(name)
    return "\n".join([*TABLES[name](result), "", *_machine(result)])


def write() -> None:
    """Write the page and the picture."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURE.write_text(picture(_result("small")))


def _result(name: str) -> Result:
    result: Result = json.loads((RESULTS / f"{name}.json").read_text())
    return result


def _memory(result: Result) -> list[str]:
    return [
        "| examples a chip | trainer | arguments and heap, GiB | of it arguments | exchanged a step, GB |",
        "| ---: | --- | ---: | ---: | ---: |",
        *(
            f"| {row['examples']} | {row['trainer']} | {row['total_gib']:.2f} | {row['arguments_gib']:.2f}"
            f" | {row['exchanged_gb']:.2f} |"
            for row in result["rows"]
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


def _extraction(result: Result) -> list[str]:
    goals, overlap = result["goals"], result["E2"]

    def row(key: str, title: str, result: float, spread: Result | None = None) -> str:
        extent = f"{spread['min']:.3f} to {spread['max']:.3f}" if spread else ""
        return f"| {key} | {title} | {goals[key]:.2f} | {result:.3f} | {extent} |"

    capture = result["E1"]["ratio"]
    return [
        "| | | at most | median | range |",
        "| --- | --- | ---: | ---: | ---: |",
        row("E1", "forward with capture over bare forward", capture["median"], capture),
        *(
            row("E2", f"wall over slowest stage; {name} kept", item["ratio"]["median"], item["ratio"])
            for name, item in overlap.items()
        ),
        *(row("E3", f"stored over useful bytes; {name} kept", item) for name, item in result["E3"].items()),
        *(row("E4", f"places over tokens; {name}", item) for name, item in result["E4"].items()),
        row("E7", "bytes read over bytes wanted", result["E7"]["ratio"]),
    ]


def _activation_extract(result: Result) -> list[str]:
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


def _preprocess(result: Result) -> list[str]:
    by_clock, of_processor = result["tokens_per_s_and_core"], result["tokens_per_processor_s"]
    faster, limit = result["ours_is_faster_by"], result["bytes_per_token_at_least"]
    return [
        f"| {result['bytes'] / 1e6:.0f} MB in {result['documents']:,} documents | tokens/s and core, median"
        " | range | ours is faster by | tokens a second of processor | range | ours is faster by |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(
            f"| {name} | {rate['median']:,.0f} | {rate['min']:,.0f} to {rate['max']:,.0f}"
            f" | {_times(faster['clock'].get(name))} | {of_processor[name]['median']:,.0f}"
            f" | {of_processor[name]['min']:,.0f} to {of_processor[name]['max']:,.0f}"
            f" | {_times(faster['processor'].get(name))} |"
            for name, rate in by_clock.items()
        ),
        "",
        f"Ours is {min(faster['clock'].values()):.2f} times as fast as the best of the others by the clock,"
        f" {min(faster['processor'].values()):.2f} times by processor time;"
        f" the goal is {result['ours_is_faster_by_at_least']:g}.",
        "",
        f"| bytes a token | of the tokens' files | above the limit of {limit} | of the index beside them |",
        "| --- | ---: | ---: | ---: |",
        *(
            f"| {name} | {size['tokens']:.4f} | {size['tokens'] / limit - 1:.2%} | {size['index']:.4f} |"
            for name, size in result["bytes_per_token"].items()
        ),
    ]


def _queue(result: Result) -> list[str]:
    waited, started = result["waited_s"], result["started_s"]
    counts = ("jobs", "slices", "pods")
    rows = [
        ("jobs, their slices, their pods", ", ".join(f"{result[key]:,}" for key in counts)),
        ("from the first submission to the last job's end", f"{result['total_s'] / 60:.1f} min"),
        ("of it until all were submitted", f"{result['submitted_s'] / 60:.1f} min"),
        ("the least that the pods' own time takes", f"{result['least_s'] / 60:.1f} min"),
        ("queued to admitted, median, 95 %", f"{waited['median']:.0f} s, {waited['p95']:.0f} s"),
        ("admitted to all pods running, median, 95 %", f"{started['median']:.1f} s, {started['p95']:.1f} s"),
        ("admissions, of them after a preemption", f"{result['admissions']:,}, {result['admitted_again']:,}"),
        ("preempted by a job of no higher priority", f"{result['preempted_by_no_higher']:,}"),
        ("out of order among jobs of one size", f"{result['out_of_order']:,}"),
        ("out of order among all that would have fitted", f"{result['out_of_order_any_size']:,}"),
        ("restarts of Kueue and JobSet", f"{result['controllers_restarted']:,}"),
        ("most slices for which quota was held, of", f"{result['most_held']:,}, {result['pools']:,}"),
        ("pools with pods of two slices at a time", f"{result['collisions']:,}"),
    ]
    return [
        "| | |",
        "| --- | ---: |",
        *(f"| {title} | {value} |" for title, value in rows),
        "",
        "| MiB resident, seconds of processor | before the jobs | at the peak | seconds |",
        "| --- | ---: | ---: | ---: |",
        *(
            f"| {name} | {result['idle_mib'][name]:,.0f} | {peak:,.0f} | {result['processor_s'][name]:,.0f} |"
            for name, peak in result["peak_mib"].items()
        ),
        f"| all | {sum(result['idle_mib'].values()):,.0f} | {sum(result['peak_mib'].values()):,.0f}"
        f" | {sum(result['processor_s'].values()):,.0f} |",
    ]


TABLES: dict[str, Callable[[Result], list[str]]] = {
    "memory": _memory,
    "small": _small,
    "saves": _saves,
    "loader": _loader,
    "restarts": _restarts,
    "extraction": lambda result: [*_extraction(result), "", *_activation_extract(result)],
    "capture": _capture,
    "preprocess": _preprocess,
    "queue": _queue,
    "queue-StrictFIFO": _queue,
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
