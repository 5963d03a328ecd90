"""The `workload activations` command."""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from views.counts import counted
from workload import arguments as arguments_of
from workload import print_progress
from workload.activations import pickles
from workload.activations.reader import Activations
from workload.activations.shard import CHANGED, MEND, About, Shard
from workload.activations.shard import name as shard_name
from workload.errors import DataError
from workload.runs.store import open_store

_READERS = 8  # of `verify`: each holds a piece of a shard, some megabytes
_EXAMPLES = """  workload activations show gs://my-project-checkpoints/extractions/qwen2.5-0.5b
  workload activations show /tmp/extracting/extractions/mine --document prompts.jsonl:17
  workload activations stats gs://my-project-checkpoints/extractions/qwen2.5-0.5b --json
  workload activations verify gs://my-project-checkpoints/extractions/qwen2.5-0.5b
  workload activations convert gs://my-project-checkpoints/extractions/qwen2.5-0.5b --out pickles/"""


def main(arguments: Sequence[str]) -> int:
    """Run a command line; return 1 if `verify` finds a problem."""
    parser = arguments_of.parser("workload activations", "Inspect the shards of an extraction.", _EXAMPLES)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, text, command in (
        ("show", "List shards, or the tensors of one document.", _show),
        (
            "stats",
            "Show each point's tokens, root mean square norm, norm of the mean, and spread.",
            _stats,
        ),
        ("verify", "Read every byte; report damaged, missing and duplicate data.", _verify),
        ("convert", "Write shards in the layout of kathir-ks/activation-extract.", _convert),
    ):
        example = next(line for line in _EXAMPLES.splitlines() if f"activations {name} " in line)
        sub = commands.add_parser(name, help=text, description=text, epilog=f"example: {example.strip()}")
        sub.add_argument("run", metavar="RUN_URL", help="gs://BUCKET/extractions/RUN, or a folder")
        sub.set_defaults(command=command)
        if name == "show":
            sub.add_argument("--document", metavar="ID", help="show this document")
        if name != "convert":
            sub.add_argument("--json", action="store_true", help="print JSON")
        if name == "convert":
            sub.add_argument(
                "--format", choices=(pickles.FORMAT,), default=pickles.FORMAT, help="output layout"
            )
            sub.add_argument("--out", required=True, metavar="URL", help="a folder, or gs://BUCKET/PREFIX")
            text = "point to convert, if the run keeps several per layer: resid_post, attn_z.h5"
            sub.add_argument("--point", metavar="KIND", help=text)
    options = parser.parse_args(arguments)
    status: int = options.command(options, Activations(options.run))
    return status


def _show(options: argparse.Namespace, activations: Activations) -> int:
    if options.document:
        document = activations[options.document]
        if options.json:
            shapes = {point: [*document[point].shape] for point in activations.points}
            named = {"id": document.id, "sample": document.sample, "tokens": len(document.tokens)}
            print(json.dumps({**named, "shapes": shapes}))
            return 0
        print(f"{document.id}: sample {document.sample}, {counted(len(document.tokens), 'token')}")
        for point in activations.points:
            value = document[point]
            size = math.prod(value.shape[1:])
            norms_L = np.linalg.norm(value.astype(np.float32).reshape(len(value), size), axis=1)
            shape = "x".join(map(str, value.shape))
            norm = f"mean norm of a token {norms_L.mean():.4g}" if len(value) else "no token is kept"
            print(f"  {point:<20} {shape:<14} {value.dtype} {norm}")
        return 0
    if options.json:
        shards = [
            {"worker": s.about.worker, "number": s.about.number, "documents": len(s.ids), "tokens": s.tokens}
            for s in activations.shards()
        ]
        print(json.dumps({"shards": shards, "points": [*activations.points]}))
        return 0
    for shard in activations.shards():
        about = shard.about
        print(
            f"tpu_{about.worker} shard {about.number} of {about.shards}:"
            f" {counted(len(shard.ids), 'document')}, {counted(shard.tokens, 'token')},"
            f" {counted(len(about.points), 'point')}"
        )
    print(f"points: {', '.join(activations.points)}")
    return 0


def _stats(options: argparse.Namespace, activations: Activations) -> int:
    statistics = {}
    for point in activations.points:
        moments = activations.moments(point)
        statistics[point] = {
            "tokens": moments.count,
            "rms_norm": moments.rms_norm,
            "norm_of_mean": float(np.linalg.norm(moments.mean)),
            "std": float(np.sqrt(moments.variance.mean())),
        }
    if partial := activations.partial():
        print_progress(partial)
    if options.json:
        print(json.dumps(statistics, indent=2))
        return 0
    print(f"{'point':<20} {'tokens':>12} {'rms norm':>10} {'|mean|':>10} {'std':>10}")
    for point, values in statistics.items():
        numbers = (f"{values[name]:>10.4g}" for name in ("rms_norm", "norm_of_mean", "std"))
        print(f"{point:<20} {values['tokens']:>12} {' '.join(numbers)}")
    return 0


def _convert(options: argparse.Namespace, activations: Activations) -> int:
    out = open_store(options.out.rstrip("/"))
    made = pickles.convert(activations, out, options.point, progress=print)
    print(f"{out.url}: {made} made of {len(activations.names)} shards")
    return 0


def _verify(options: argparse.Namespace, activations: Activations) -> int:
    problems = []
    held: dict[str, str] = {}
    workers: dict[int, dict[int, About]] = {}
    unread: set[str] = set()  # damaged, but not missing
    run = activations.run()
    indices = set(activations.indices)
    for name, (shard, wrong) in _read_all(activations, [*activations.indices, *activations.names]):
        problems += wrong
        if shard is None:
            unread.add(name)
        if wrong and name in indices:
            activations.indices.remove(name)
        if shard is None or name in indices:
            continue
        if shard.ids != tuple(activations.ids(name)):
            problems.append(f"{name}: holds other documents than its index")
        about = shard.about
        first = next(iter(workers.setdefault(about.worker, {}).values()), about)
        workers[about.worker][about.number] = about
        if run and about.run_sha256 != run[0]:
            problems.append(f"{name}: belongs to another run than config.json")
        if (about.stream_sha256, about.shards) != (first.stream_sha256, first.shards):
            problems.append(f"{name}: belongs to another stream than shard {first.number}")
        for document in shard.ids:
            if document in held:
                problems.append(f"{name}: {document!r} is also in {held[document]}")
            held[document] = name
    if run is None:
        problems.append("config.json: is missing or damaged: the run's streams are unknown")
    elif absent := activations.absent():
        problems.append(f"of {run[1]} streams, {_first_few(absent)} have no shard yet")
    for worker, shards in sorted(workers.items()):
        count = max(about.shards for about in shards.values())
        absent = sorted(set(range(1, count + 1)) - shards.keys())
        if missing := [number for number in absent if shard_name(worker, number) not in unread]:
            problems.append(
                f"tpu_{worker}: {len(missing)} of {count} shards are missing: {_first_few(missing)}"
            )
    if options.json:
        report = {"shards": len(activations.names), "documents": len(held), "problems": problems}
        print(json.dumps(report))
        return 1 if problems else 0
    for problem in problems:
        print(problem)
    counts = (len(activations.names), "shard"), (len(held), "document"), (len(problems), "problem")
    print(f"{options.run}: {', '.join(counted(*count) for count in counts)}")
    return 1 if problems else 0


def _read_all(
    activations: Activations, names: Sequence[str]
) -> Iterator[tuple[str, tuple[Shard | None, list[str]]]]:
    """Read each file whole, several at a time; yield its name, it and its problems, in the names' order."""

    def read(name: str) -> tuple[Shard | None, list[str]]:
        try:
            shard, problems = activations.check(name)
            changed = [problem for problem in problems if problem.endswith(CHANGED)]
            output = [f"{name}: {problem}" for problem in problems if problem not in changed]
            if changed:
                output.append(f"{name}: {_first_few(changed)}\n    fix: {MEND}")
            return shard, output
        except DataError as error:
            return None, [str(error)]

    with ThreadPoolExecutor(_READERS) as pool:
        yield from zip(names, pool.map(read, names), strict=True)


def _first_few(items: Sequence[int | str]) -> str:
    return ", ".join(map(str, items[:8])) + (" and more" if len(items) > 8 else "")
