"""The `workload extract` command."""

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from views.counts import counted
from workload import arguments as arguments_of
from workload import command, print_progress
from workload.activations import pickles
from workload.activations.reader import Activations
from workload.errors import ConfigError, Problem, StoreError, TakenError, WorkloadError
from workload.extract import config as configs
from workload.host import chips
from workload.host.heartbeat import Heartbeat
from workload.runs import location

_LARGEST_DOWNLOAD_BYTES = 1 << 28  # of a stream that an estimate checks
_EXAMPLES = """  workload extract qwen2.5-0.5b.toml --stream gs://my-project-checkpoints/streams/stream_000.safetensors
  workload extract mine.toml --stream streams/stream_000.safetensors --dir /tmp/extracting
  workload extract mine.toml --stream ... --set 'extract.points=["resid_post.12", "mlp_out.*"]' --name two"""


def main(arguments: Sequence[str]) -> int:
    """Run a command line; return 0 once all of the stream is committed."""
    description = "Run a model over a stream and keep its tensors at some points."
    parser = arguments_of.parser("workload extract", description, _EXAMPLES)
    parser.add_argument("config", metavar="CONFIG", help="a TOML file, or a packaged one (qwen2.5-0.5b.toml)")
    text = (
        "a stream of `workload data streams`, or their folder: selects the stream of this host's number in "
        "its fleet or job, or all streams of a local folder"
    )
    parser.add_argument("--stream", required=True, metavar="URL", help=text)
    arguments_of.add_set(parser)
    parser.add_argument("--name", metavar="RUN", help="name of the run (default: the config's name)")
    text = "parent of extractions/ (default: gs://$CHECKPOINT_BUCKET)"
    parser.add_argument("--dir", metavar="DIR", help=text)
    text = "pkl.gz: convert the shards too; see `workload activations convert`"
    parser.add_argument("--format", choices=("safetensors", pickles.FORMAT), default="safetensors", help=text)
    text = "point to convert with --format pkl.gz, if the run keeps several per layer"
    parser.add_argument("--point", metavar="KIND", help=text)
    text = "print size, price and time of the output of all streams, and extract nothing"
    parser.add_argument("--estimate", action="store_true", help=text)
    text = "with --estimate: type of the slices, of one host"
    parser.add_argument("--slice", default="v6e-8", metavar="TYPE", help=f"{text} (default: v6e-8)")
    parser.add_argument("--json", action="store_true", help="with --estimate: print JSON")
    options = parser.parse_args(arguments)
    if options.estimate:
        return _estimate(options)
    with Heartbeat.of_host(os.environ, chips.readings) as heartbeat:
        try:
            status = _run(options, heartbeat)
        except TakenError:
            heartbeat.end(None)
            raise
        heartbeat.end("done")
    return status


def _estimate(options: argparse.Namespace) -> int:
    from workload.data.stream import read
    from workload.extract import checks, points, positions
    from workload.extract.estimate import of_source
    from workload.extract.weights import described
    from workload.model import huggingface
    from workload.preflight.slices import of_a_host
    from workload.runs.store import open_store

    config = configs.load(options.config, options.overrides)
    chips, problems = of_a_host(options.slice)
    url, of_url = _url(options)
    placed = bool(options.dir or os.environ.get("CHECKPOINT_BUCKET"))  # an estimate needs no place
    problems += [problem for problem in of_url if placed or problem.path == "--name"]
    problems += [*_of_format(options), *_of_stream(options.stream)]
    extract = config.extract
    of_positions = positions.unknown(extract.positions)
    with _of_hosts([*problems, *points.unknown(extract.points), *of_positions]):
        weights = described(config.model.weights, options.dir)
        arch = weights.arch
    wanted, of_points = points.parse(extract.points, arch)
    if problems := problems + of_points + of_positions:
        raise ConfigError("workload extract", problems)
    names = tuple(tensor.name for tensor in wanted)
    if options.format == pickles.FORMAT:
        pickles.by_layer(names, options.point)
    with _of_hosts(()):
        estimate = of_source(options.stream, extract, wanted, arch)
    folder, begun = getattr(weights, "path", None), list[str]()  # a folder may hold config.json alone
    present = not folder or any((folder / name).exists() for name in (huggingface.WHOLE, huggingface.INDEX))
    with _noted():
        begun += open_store(url).list(checks.IDENTITY) if placed else []
        if begun and not present:
            raise StoreError(f"{weights.name} holds no weights")
    for stream in map(read, _to_check(options.stream)):
        checks.selected(config, stream, weights, present)
        if begun and present:
            given = checks.identity(config, stream, weights, names, chips)
            with _noted():
                checks.refuse_other_run(open_store(url), given, compared_chips=False)
    if options.json:
        facts: dict[str, float] = {"tokens": estimate.tokens, "kept": estimate.kept}
        facts["size_bytes"] = estimate.size_bytes
        facts["predicted_host_hours"] = estimate.hours(chips)
        print(json.dumps(facts | {"storage_dollars_per_month": estimate.monthly_dollars}))
    else:
        print(estimate.text(chips))
    return 0


@contextmanager
def _of_hosts(problems: Sequence[Problem]) -> Iterator[None]:
    """Raise ConfigError of other problems where weights or streams can't be read here; else end with 1.

    Hosts may have them, so that they are no problem of the request.
    """
    try:
        yield
    except WorkloadError as error:
        if problems:
            raise ConfigError("workload extract", problems) from None
        error.exit_code = 1
        raise


@contextmanager
def _noted() -> Iterator[None]:
    """Print that the run's record can't be compared, which an estimate doesn't need."""
    try:
        yield
    except StoreError as error:
        print_progress(f"not compared with the run's record: {error}")


def _run(options: argparse.Namespace, heartbeat: Heartbeat) -> int:
    config = configs.load(options.config, options.overrides)
    url, problems = _url(options)
    stream, member = options.stream, _member(os.environ, problems)
    chosen = [stream]
    if stream.endswith(".safetensors") and "SLICE_COUNT" in os.environ:
        folder = stream.rpartition("/")[0] or "."
        fix = f"name their folder, {folder}: each slice takes the stream of its number"
        problems.append(Problem("--stream", stream, "would be extracted by all slices of this job", fix))
    elif not stream.endswith(".safetensors"):
        if wrong := _of_stream(stream, required=True):
            problems += wrong
        elif not member and (local := _local_streams(stream)):
            chosen = local  # in sequence
        elif not member.isdecimal():
            fix = f"name a stream, e.g. {stream.rstrip('/')}/stream_000.safetensors"
            rule = "must be a number if --stream is a folder; fleets and jobs set it"
            problems.append(Problem("$TPU_MEMBER", repr(member) if member else "(not set)", rule, fix))
        else:
            chosen = [f"{stream.rstrip('/')}/stream_{int(member):03}.safetensors"]
    problems += _of_format(options)
    if problems:
        raise ConfigError("workload extract", problems)
    for variable in [name for name in os.environ if name.startswith("MEGASCALE_")]:
        del os.environ[variable]  # libtpu would wait for the other slices
    heartbeat.report(run=url)
    for stream_url in chosen:
        _extract(options, config, url, stream_url, heartbeat)
    print(f"next: {command('activations', 'show', url)}")
    return 0


def _url(options: argparse.Namespace) -> tuple[str, list[Problem]]:
    """Return the URL of the run, and problems of its name and place."""
    return location.of_run("extractions", options.name or Path(options.config).stem, options.dir)


def _of_stream(stream: str, required: bool = False) -> list[Problem]:
    """Return the problem of a path that is no folder or stream; `required`: by a start on this machine."""
    if "://" in stream or stream.endswith(".safetensors") or Path(stream).is_dir():
        return []
    if not required and not Path(stream).exists():
        return []
    rule = "is not a stream" if Path(stream).exists() else "no such folder"
    fix = f"name a stream, or the folder, that `{command('data', 'streams')} --source … --out …` wrote"
    return [Problem("--stream", stream, rule, fix)]


def _of_format(options: argparse.Namespace) -> list[Problem]:
    """Return the problem of a --point without a layout that needs it."""
    if not options.point or options.format == pickles.FORMAT:
        return []
    rule = f"requires --format {pickles.FORMAT}, whose layout has one tensor a layer"
    fix = "leave it out; extract.points selects the tensors to store"
    return [Problem("--point", options.point, rule, fix)]


def _member(environment: Mapping[str, str], problems: list[Problem]) -> str:
    """Return this host's number in its fleet, or its slice's in a job; empty if it is alone."""
    workers = environment.get("WORKER_COUNT", "1")
    if workers == "1":
        return environment.get("TPU_MEMBER", "")
    if workers != environment.get("SLICE_COUNT"):
        fix = "slices of one host, up to v6e-8, as many as there are streams"
        problems.append(
            Problem(
                "$WORKER_COUNT",
                workers,
                "must equal $SLICE_COUNT: a host extracts alone, on its own chips",
                fix,
            )
        )
    return environment.get("WORKER_ID", "")


def _local_streams(folder: str) -> list[str]:
    """Return the streams of a local folder."""
    return [] if "://" in folder else sorted(map(str, Path(folder).glob("stream_*.safetensors")))


def _to_check(stream: str) -> list[str]:
    """Return the streams that an estimate checks: all of a local folder, a bucket's first if it is short."""
    from workload.runs.store import open_store

    if stream.endswith(".safetensors"):
        return [stream]
    sizes = open_store(stream).sizes("stream_")
    names = sorted(name for name in sizes if name.endswith(".safetensors"))
    if "://" in stream:
        names = [name for name in names[:1] if sizes[name] <= _LARGEST_DOWNLOAD_BYTES]
    return [f"{stream.rstrip('/')}/{name}" for name in names]


def _extract(
    options: argparse.Namespace, config: configs.Config, url: str, stream: str, heartbeat: Heartbeat
) -> None:
    """Extract a stream."""
    from workload.data.stream import read
    from workload.extract.run import Extraction
    from workload.extract.weights import find
    from workload.runs.lease import of_stream
    from workload.runs.store import open_store

    store = open_store(url)
    weights = find(config.model.weights, options.dir)
    samples = read(stream)
    lease = of_stream(store, samples.about.number, os.environ.get("TPU_NAME", ""), print_progress)
    extraction = Extraction(config, samples, weights, store, print_progress, heartbeat, lease.check)
    if options.format == pickles.FORMAT:
        pickles.by_layer(extraction.points, options.point)  # refuse before hours of work
    with lease:
        summary = extraction.go()
    shards = f"{counted(summary.shards, 'shard')} of {counted(summary.samples, 'sample')}"
    created = f"{summary.made} made here" + (
        f", {summary.taken} by another meanwhile" if summary.taken else ""
    )
    print(f"{store.url}: {shards}, {created}")
    if options.format == pickles.FORMAT:
        out = open_store(f"{store.url}/{pickles.FORMAT}")
        made = pickles.convert(Activations(store.url), out, options.point, extraction.worker, print_progress)
        print(f"{out.url}: {made} made here")
    if summary.stages:
        busiest = max(summary.stages, key=lambda stage: stage.busy_s)
        busy = ", ".join(f"{stage.name} {stage.busy_s:.1f} s" for stage in summary.stages)
        print(
            f"{summary.tokens / summary.wall_s:,.0f} tokens/s; {summary.wall_s:.1f} s, of which busy: {busy};"
            f" bound by {busiest.name}; {1 - summary.tokens / summary.places:.1%} of it padding"
        )
