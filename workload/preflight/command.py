"""Command `workload preflight`."""

import argparse
import json
import math
from collections.abc import Sequence
from functools import partial

from workload import arguments as arguments_of
from workload import print_progress
from workload.errors import ConfigError, Problem, StoreError, WeightsError
from workload.model.architecture import Architecture
from workload.modules.config import ModuleConfig
from workload.preflight import report
from workload.preflight import search as searching
from workload.preflight.compiler import Compiled, compile_step, lookup
from workload.preflight.slices import Slices, price, slices
from workload.preflight.verdict import Verdict, judge
from workload.runs.errors import MissingObjectError
from workload.train import config as configs
from workload.train import divisibility
from workload.train.config import Config

_EXAMPLES = """  workload preflight llama-3.1-8b-v6e-256.toml --slice v6e-256
  workload preflight llama-3.1-8b-2x256.toml --slice v6e-256 --slices 2 --json
  workload preflight mine.toml --slice v6e-16 --set train.batch_size=32
  workload preflight llama-3.1-8b-v6e-8.toml --slice v6e-8 --search --plot found.png"""


def main(arguments: Sequence[str]) -> int:
    """Run a command line.

    Returns:
        0 if the run fits, 3 if not or uncertain; 4 if --cached finds no result or no model.
    """
    description = "Predict memory, speed and price of a run on a slice. Needs no TPU."
    parser = arguments_of.parser("workload preflight", description, _EXAMPLES)
    parser.add_argument("config", metavar="CONFIG", help="a TOML file, or a packaged one")
    parser.add_argument("--slice", required=True, metavar="TYPE", help="e.g. v6e-16")
    parser.add_argument("--slices", type=int, default=1, metavar="N", help="number of slices (default: 1)")
    arguments_of.add_set(parser)
    parser.add_argument("--region", default="us-east5", help="region of the price (default: us-east5)")
    text = "assumed minutes from a preemption until the run resumes (default: 10)"
    parser.add_argument("--recovery-min", type=float, default=10.0, metavar="MIN", help=text)
    parser.add_argument("--search", action="store_true", help="try and rank batches, remat, meshes and flags")
    parser.add_argument(
        "--plot", type=arguments_of.local, metavar="FILE", help="with --search: plot the candidates"
    )
    parser.add_argument("--json", action="store_true", help="print the whole result as JSON")
    parser.add_argument(
        "--html", type=arguments_of.local, metavar="FILE", help="also write the result as a page"
    )
    parser.add_argument("--fresh", action="store_true", help="compile even if the result is cached")
    text = "use only a cached result; exit status 4 without one"
    parser.add_argument("--cached", action="store_true", help=text)
    options = parser.parse_args(arguments)
    if options.cached and options.search:
        parser.error("--cached and --search exclude each other")
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    config = configs.load(options.config, options.overrides)
    desired = slices(options.slice, options.slices)
    paid = price(options.region)
    _check(config, desired)
    _check_options(options)
    if not options.cached:
        _check_folders(config)
    try:
        config = _with_weights(config)
    except (ConfigError, WeightsError) as error:
        # Weights that aren't here are on the hosts; [model] beside those that are is wrong there, too.
        paths = [problem.path for problem in error.problems] if isinstance(error, ConfigError) else []
        if not options.cached or any(path.startswith("model.") for path in paths):
            raise
        print_progress(str(error))
        return 4
    try:
        _check_vocabulary(config)
    except ConfigError as error:
        if not options.cached:
            raise
        print_progress(str(error))  # the hosts have the tokens
        return 4

    def judged(config: Config, compiled: Compiled) -> Verdict:
        return judge(config, desired, paid, compiled, options.recovery_min * 60)

    if options.cached:
        known = lookup(config, desired)
        if known is None:
            print_progress(
                f"no cached result for {options.config} on {desired.title}; run again without --cached"
            )
            return 4
        return _print(judged(config, known), options)
    compile_with = partial(compile_step, use_cache=not options.fresh)
    if options.search:
        ranked = searching.search(config, desired, judged, report=print_progress, compile_with=compile_with)
        best = ranked[0]
        fits = best.verdict is not None and best.verdict.fits == "yes"
        if options.json:
            results = [candidate.verdict.as_json() for candidate in ranked if candidate.verdict]
            print(json.dumps(results, indent=2))
        else:
            print(searching.table(ranked))
            words = " ".join(f"--set {word!r}" for word in best.settings.split(" "))
            print(f"\nnext: {words if fits else 'use a larger slice: none of these surely fits'}")
        if options.plot:
            from workload.preflight.plot import draw

            draw(ranked, options.plot, f"{options.config} on {desired.title}")
        return 0 if fits else 3
    print_progress(
        f"compiling for {desired.title}: 1 minute for a small model, 5 to 15 for a large one; then cached"
    )
    return _print(judged(config, compile_with(config, desired)), options)


def _print(verdict: Verdict, options: argparse.Namespace) -> int:
    print(json.dumps(verdict.as_json(), indent=2) if options.json else report.text(verdict, options.config))
    if options.html:
        from workload.preflight.page import page  # jinja2, where a page is written

        options.html.write_text(page(verdict, options.config), encoding="utf-8")
        print_progress(f"page: {options.html}")
    return 0 if verdict.fits == "yes" else 3


def _with_weights(config: Config) -> Config:
    """Return the config with the model of its initial weights, if their folder is on this machine.

    Otherwise a given [model] is used.
    """
    folder = config.train.init_from
    if (
        not folder
        or isinstance(config.model, ModuleConfig)
        or (
            config.model != Architecture()
            and (folder.startswith(("gs://", "run:")) or not config.weights.exists())
        )
    ):
        return config
    from workload.train.fitting import model_from_weights  # imports JAX

    problems: list[Problem] = []
    config = model_from_weights(config, problems)
    if problems:
        raise ConfigError("workload preflight", problems)
    return config


def _check_folders(config: Config) -> None:
    """Raise ConfigError for tokens in buckets that aren't there; what can't be read here is left to hosts."""
    from workload.data.tokens import MANIFEST
    from workload.runs.store import open_store

    named = {"data.path": config.data.path, "observe.eval_path": config.observe.eval_path}
    named |= {f"data.sources[{n}].path": source.path for n, source in enumerate(config.data.sources)}
    problems = []
    for key, url in named.items():
        try:
            if url.startswith("gs://"):
                open_store(url).read(MANIFEST)
        except MissingObjectError:
            problems.append(Problem(key, url, f"holds no {MANIFEST}", "upload it: tpu data put ENV FOLDER"))
        except StoreError as error:
            print_progress(f"{key}: not checked: {error}")
    if problems:
        raise ConfigError("workload preflight", problems)


def _check_vocabulary(config: Config) -> None:
    if not config.model.vocab_size and not isinstance(config.model, ModuleConfig):
        rule, fix = "must be set, since preflight reads no tokens", "set it to the tokenizer's"
        raise ConfigError("workload preflight", [Problem("model.vocab_size", "0", rule, fix)])


def _check_options(options: argparse.Namespace) -> None:
    problems = []
    if not 0 <= options.recovery_min < math.inf:
        rule = "must be 0 minutes or more"
        problems.append(Problem("--recovery-min", f"{options.recovery_min:g}", rule, "10 is usual"))
    if options.plot and not options.search:
        rule = "requires --search"
        problems.append(Problem("--plot", str(options.plot), rule, "add --search, or remove --plot"))
    if options.html and options.search:
        rule = "excludes --search, which has many results"
        problems.append(Problem("--html", str(options.html), rule, "remove one of them"))
    for flag, file in (("--plot", options.plot), ("--html", options.html)):
        if file and not file.absolute().parent.is_dir():
            rule = "must be in an existing folder"
            problems.append(Problem(flag, str(file), rule, "create the folder, or name another"))
    if problems:
        raise ConfigError("workload preflight", problems)


def _check(config: Config, slices: Slices) -> None:
    """Raise ConfigError for settings that the compiler would refuse with unclear errors."""
    problems = []
    if slices.chips_each % config.mesh.data:
        rule = f"must divide the chips of a slice, {slices.chips_each}"
        problems.append(Problem("mesh.data", str(config.mesh.data), rule, "1, or a divisor"))
    problems += divisibility.problems(config, slices.chips, "tpu", "the chips", "chip")
    if problems:
        raise ConfigError("workload preflight", problems)
