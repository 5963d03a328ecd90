"""The tables of docs/internals/benchmarks.md from results/*.json.

`python -m benchmarks page` writes them; the words between the tables are written manually.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.blocks import filled
from views.table import markdown

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs" / "internals"
PAGE = DOCS / "benchmarks.md"
Result = dict[str, Any]


def block(name: str) -> str:
    """Return the table of a result, and the machine that it was measured on."""
    result = _result(name)
    return "\n".join([*TABLES[name](result), "", *_machine(result)])


def write() -> None:
    """Write the page."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def _result(name: str) -> Result:
    result: Result = json.loads((RESULTS / f"{name}.json").read_text())
    return result


def _maxtext(result: Result) -> list[str]:
    head = (
        "step", "examples a chip", "trainer", "arguments and heap, GiB", "on the host, GiB",
        "sent by a chip, GB", "on links, ms", "waited for, ms", "TFLOP", "until its schedule, s",
    )  # fmt: skip
    rows = [
        (
            row["row"], row["examples"], row["trainer"], f"{row['hbm_gib']:.2f}", f"{row['host_gib']:.2f}",
            f"{row['sent_gb']:.1f}", f"{row['links_s'] * 1e3:,.0f}", f"{row['exposed_s'] * 1e3:,.0f}",
            f"{row['tflop']:,.0f}", f"{row['took_s']:.0f}",
        )
        for row in result["rows"]
    ]  # fmt: skip
    return markdown(head, rows, numbers=(1, *range(3, len(head))))


def _spread(of: Result, spec: str = ",.0f") -> tuple[str, str]:
    """Format median and range."""
    return format(of["median"], spec), f"{of['min']:{spec}} to {of['max']:{spec}}"


def _times(factor: float | None) -> str:
    return f"{factor:.1f}" if factor else ""


def _saves(result: Result) -> list[str]:
    goal = f"{result['stall_share_at_most']:.0%}"
    rows = [
        ("share of the time that training stands still", goal, *_spread(result["stall_share"], ".2%")),
        ("bytes written a parameter", f"{12 * 1.02:.2f}", *_spread(result["bytes_a_parameter"], ".3f")),
    ]
    return markdown(("", "goal", "median", "range"), rows, range(1, 4))


def _extraction(result: Result) -> list[str]:
    goals = result["goals"]

    def row(key: str, title: str, figure: float | Result) -> tuple[str, ...]:
        cells = _spread(figure, ".3f") if isinstance(figure, dict) else (f"{figure:.3f}", "")
        return (key, title, f"{goals[key]:.2f}", *cells)

    rows = [
        row("E1", "forward with capture over bare forward", result["E1"]["ratio"]),
        *(
            row("E2", f"wall over slowest stage; {name} kept", overlap["ratio"])
            for name, overlap in result["E2"].items()
        ),
        *(row("E3", f"stored over useful bytes; {name} kept", ratio) for name, ratio in result["E3"].items()),
        *(row("E4", f"places over tokens; {name}", ratio) for name, ratio in result["E4"].items()),
        row("E7", "bytes read over bytes wanted", result["E7"]["ratio"]),
    ]
    return markdown(("", "", "at most", "median", "range"), rows, (2, 3, 4))


def _activation_extract(result: Result) -> list[str]:
    stored = result["E8"]
    arrays = f"{stored['array_bytes'] / 1e6:.0f} MB of float32 arrays, written as"
    rows = [
        (
            name,
            *_spread(seconds, ".2f"),
            f"{stored['bytes'][name] / 1e6:.0f}",
            _times(stored["times_faster"].get(name)),
        )
        for name, seconds in stored["seconds"].items()
    ]
    return markdown((arrays, "seconds, median", "range", "MB", "ours is faster by"), rows, range(1, 5))


def _preprocess(result: Result) -> list[str]:
    by_clock, of_processor = result["tokens_per_s_and_core"], result["tokens_per_processor_s"]
    faster, limit = result["ours_is_faster_by"], result["bytes_per_token_at_least"]
    speed = [
        (
            name,
            *_spread(rate),
            _times(faster["clock"].get(name)),
            *_spread(of_processor[name]),
            _times(faster["processor"].get(name)),
        )
        for name, rate in by_clock.items()
    ]
    sizes = [
        (name, f"{size['tokens']:.4f}", f"{size['tokens'] / limit - 1:.2%}", f"{size['index']:.4f}")
        for name, size in result["bytes_per_token"].items()
    ]
    documents = f"{result['bytes'] / 1e6:.0f} MB in {result['documents']:,} documents"
    compared = "range", "ours is faster by"
    head = documents, "tokens/s and core, median", *compared, "tokens a second of processor", *compared
    of_size = "of the tokens' files", f"above the limit of {limit}", "of the index beside them"
    return [
        *markdown(head, speed, range(1, 7)),
        "",
        f"Ours is {min(faster['clock'].values()):.2f} times as fast as the best of the others by the clock,"
        f" {min(faster['processor'].values()):.2f} times by processor time;"
        f" the goal is {result['ours_is_faster_by_at_least']:g}.",
        "",
        *markdown(("bytes a token", *of_size), sizes, (1, 2, 3)),
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
    peaks = result["peak_mib"]
    memory = [
        (name, *(f"{result[key][name]:,.0f}" for key in ("idle_mib", "peak_mib", "processor_s")))
        for name in peaks
    ]
    sums = (f"{sum(result[key].values()):,.0f}" for key in ("idle_mib", "peak_mib", "processor_s"))
    return [
        *markdown(("", ""), rows, (1,)),
        "",
        *markdown(
            ("MiB resident, seconds of processor", "before the jobs", "at the peak", "seconds"),
            [*memory, ("all", *sums)],
            (1, 2, 3),
        ),
    ]


TABLES: dict[str, Callable[[Result], list[str]]] = {
    "maxtext": _maxtext,
    "saves": _saves,
    "extraction": lambda result: [*_extraction(result), "", *_activation_extract(result)],
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
