"""The `workload activations` command."""

import argparse
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from workload import arguments as arguments_of
from workload.activations import pickles
from workload.activations.reader import Activations
from workload.activations.shard import CHANGED, MEND, About, Shard, folder
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
    """Runs a command line; 1 if `verify` finds something wrong."""
    parser = arguments_of.parser("workload activations", "Look at what an extraction left.", _EXAMPLES)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, text, command in (
        ("show", "List shards, or what is stored of one document.", _show),
        ("stats", "Tokens, mean norm and spread of every point, over all shards.", _stats),
        ("verify", "Read every byte; say what is damaged, missing or there twice.", _verify),
        ("convert", "Write shards as kathir-ks/activation-extract does, for those who read that.", _convert),
    ):
        example = next(line for line in _EXAMPLES.splitlines() if f"activations {name} " in line)
        one = commands.add_parser(name, help=text, description=text, epilog=f"example: {example.strip()}")
        one.add_argument("run", metavar="RUN_URL", help="gs://BUCKET/extractions/RUN, or a folder")
        one.set_defaults(command=command)
        if name == "show":
            one.add_argument("--document", metavar="ID", help="this one")
        if name != "convert":
            one.add_argument("--json", action="store_true", help="for programs")
        if name == "convert":
            one.add_argument(
                "--format", choices=(pickles.FORMAT,), default=pickles.FORMAT, help="the only one"
            )
            one.add_argument("--out", required=True, metavar="URL", help="a folder, or gs://BUCKET/PREFIX")
            text = "which, where the run keeps several of a layer: resid_post, attn_z.h5"
            one.add_argument("--point", metavar="KIND", help=text)
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
        print(f"{document.id}: sample {document.sample}, {len(document.tokens)} tokens")
        for point in activations.points:
            value = document[point]
            norm = float(np.linalg.norm(value.astype(np.float32)))
            print(f"  {point:<20} {'x'.join(map(str, value.shape)):<14} {value.dtype} norm {norm:.4g}")
        return 0
    if options.json:
        shards = [
            {"worker": about.worker, "number": about.number, "documents": len(one.ids), "tokens": one.tokens}
            for one in activations.shards()
            for about in (one.about,)
        ]
        print(json.dumps({"shards": shards, "points": [*activations.points]}))
        return 0
    for one in activations.shards():
        about = one.about
        print(
            f"tpu_{about.worker} shard {about.number} of {about.shards}: {len(one.ids)} documents,"
            f" {one.tokens} tokens, {len(about.points)} points"
        )
    print(f"points: {', '.join(activations.points)}")
    return 0


def _stats(options: argparse.Namespace, activations: Activations) -> int:
    found = {}
    for point in activations.points:
        moments = activations.moments(point)
        found[point] = {
            "tokens": moments.count,
            "mean_norm": float(np.linalg.norm(moments.mean)),
            "std": float(np.sqrt(moments.variance.mean())),
        }
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    print(f"{'point':<20} {'tokens':>12} {'|mean|':>10} {'std':>10}")
    for point, values in found.items():
        print(f"{point:<20} {values['tokens']:>12} {values['mean_norm']:>10.4g} {values['std']:>10.4g}")
    return 0


def _convert(options: argparse.Namespace, activations: Activations) -> int:
    out = open_store(options.out.rstrip("/"))
    made = pickles.convert(activations, out, options.point, say=print)
    print(f"{out.url}: {made} made of {len(activations.names)} shards")
    return 0


def _verify(options: argparse.Namespace, activations: Activations) -> int:
    problems = []
    held: dict[str, str] = {}
    workers: dict[int, dict[int, About]] = {}
    unread: set[str] = set()  # there, so that it is no news that they aren't
    run = activations.run()
    for name, (one, wrong) in zip(activations.names, _read_all(activations), strict=True):
        problems += wrong
        if one is None:
            unread.add(name)
            continue
        about = one.about
        first = next(iter(workers.setdefault(about.worker, {}).values()), about)
        workers[about.worker][about.number] = about
        if run and about.run_sha256 != run[0]:
            problems.append(f"{name}: is of another run than config.json")
        if (about.stream_sha256, about.shards) != (first.stream_sha256, first.shards):
            problems.append(f"{name}: is of another stream than shard {first.number}")
        for document in one.ids:
            if document in held:
                problems.append(f"{name}: {document!r} is in {held[document]} too")
            held[document] = name
    if run is None:
        problems.append("config.json: is missing or damaged: which streams belong to the run is unknown")
    elif absent := [
        worker
        for worker in range(run[1])
        if worker not in workers and not any(name.startswith(folder(worker)) for name in unread)
    ]:
        problems.append(f"of {run[1]} streams, nothing of {_some(absent)} is there yet")
    for worker, shards in sorted(workers.items()):
        count = max(about.shards for about in shards.values())
        absent = sorted(set(range(1, count + 1)) - shards.keys())
        if missing := [number for number in absent if shard_name(worker, number) not in unread]:
            problems.append(f"tpu_{worker}: shards {_some(missing)} of {count} aren't there yet")
    if options.json:
        found = {"shards": len(activations.names), "documents": len(held), "problems": problems}
        print(json.dumps(found))
        return 1 if problems else 0
    for problem in problems:
        print(problem)
    print(f"{options.run}: {len(activations.names)} shards, {len(held)} documents, {len(problems)} problems")
    return 1 if problems else 0


def _read_all(activations: Activations) -> Iterator[tuple[Shard | None, list[str]]]:
    """Each shard, read whole, and what is wrong with it, in the order of the names; some at a time."""

    def read(name: str) -> tuple[Shard | None, list[str]]:
        try:
            one, found = activations.check(name)
            changed = [problem for problem in found if problem.endswith(CHANGED)]
            output = [f"{name}: {problem}" for problem in found if problem not in changed]
            if changed:
                output.append(f"{name}: {_some(changed)}\n    fix: {MEND}")
            return one, output
        except DataError as error:
            return None, [str(error)]

    with ThreadPoolExecutor(_READERS) as pool:
        yield from pool.map(read, activations.names)


def _some(found: Sequence[int | str]) -> str:
    return ", ".join(map(str, found[:8])) + (" and more" if len(found) > 8 else "")
