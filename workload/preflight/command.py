"""The `workload preflight` command."""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from workload import arguments as arguments_of
from workload.errors import ConfigError, Problem
from workload.model.architecture import Architecture
from workload.preflight import report
from workload.preflight import search as searching
from workload.preflight.compiler import Compiled, compile_step, lookup
from workload.preflight.page import page
from workload.preflight.slices import Slices, price, slices
from workload.preflight.verdict import Verdict, judge
from workload.train import config as configs
from workload.train import divisibility
from workload.train.config import Config

_EXAMPLES = """  workload preflight llama-3.1-8b-v6e-256.toml --slice v6e-256
  workload preflight llama-3.1-8b-2x256.toml --slice v6e-256 --slices 2 --json
  workload preflight mine.toml --slice v6e-16 --set train.batch_size=32
  workload preflight llama-3.1-8b-v6e-8.toml --slice v6e-8 --search --plot found.png"""


def main(arguments: Sequence[str]) -> int:
    """Runs a command line; 0 if the run fits, 3 if it doesn't or that is uncertain."""
    description = "Say whether a run fits a slice, how fast, at what price. Needs no TPU."
    parser = arguments_of.parser("workload preflight", description, _EXAMPLES)
    parser.add_argument("config", metavar="CONFIG", help="a TOML file, or a packaged one")
    parser.add_argument("--slice", required=True, metavar="TYPE", help="e.g. v6e-16")
    parser.add_argument("--slices", type=int, default=1, metavar="N", help="work on one run (default: 1)")
    arguments_of.add_set(parser)
    parser.add_argument("--region", default="us-east5", help="whose price counts (default: us-east5)")
    text = "assumed, from a preemption until the run resumes (default: 10)"
    parser.add_argument("--recovery-min", type=float, default=10.0, metavar="MIN", help=text)
    parser.add_argument(
        "--search", action="store_true", help="try batches, remat, meshes and flags; rank them"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="with --search: draw what was found")
    parser.add_argument("--json", action="store_true", help="the whole answer, for programs")
    parser.add_argument("--html", type=Path, metavar="FILE", help="the answer as a page, too")
    parser.add_argument("--fresh", action="store_true", help="compile even if the answer is cached")

    text = "only a cached result; exit status 4 if there is none"
    parser.add_argument("--cached", action="store_true", help=text)
    options = parser.parse_args(arguments)
    if options.cached and options.search:
        parser.error("--cached looks one answer up, --search asks for many: give one of them")
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    config = _with_weights(configs.load(options.config, options.overrides))
    desired = slices(options.slice, options.slices)
    paid = price(options.region)
    _check(config, desired)
    _check_options(options)

    def judged(config: Config, compiled: Compiled) -> Verdict:
        return judge(config, desired, paid, compiled, options.recovery_min * 60)

    if options.cached:
        known = lookup(config, desired)
        if known is None:
            _say(f"no cached result for {options.config} on {desired.title}; run again without --cached")
            return 4
        return _tell(judged(config, known), options)
    ask = partial(compile_step, use_cache=not options.fresh)
    if options.search:
        found = searching.search(config, desired, judged, say=_say, compile_with=ask)
        best = found[0]
        fits = best.verdict is not None and best.verdict.fits == "yes"
        if options.json:
            answers = [one.verdict.as_json() for one in found if one.verdict]
            print(json.dumps(answers, indent=2))
        else:
            print(searching.table(found))
            words = " ".join(f"--set {word!r}" for word in best.settings.split(" "))
            print(f"\nnext: {words if fits else 'none of these is sure to fit: take a larger slice'}")
        if options.plot:
            from workload.preflight.plot import draw

            draw(found, options.plot, f"{options.config} on {desired.title}")
        return 0 if fits else 3
    _say(f"compiling for {desired.title}: a minute for a small model, 5 to 15 for a large one; cached then")
    return _tell(judged(config, ask(config, desired)), options)


def _tell(verdict: Verdict, options: argparse.Namespace) -> int:
    print(json.dumps(verdict.as_json(), indent=2) if options.json else report.text(verdict, options.config))
    if options.html:
        options.html.write_text(page(verdict, options.config), encoding="utf-8")
        _say(f"page: {options.html}")
    return 0 if verdict.fits == "yes" else 3


def _with_weights(config: Config) -> Config:
    """The config with the model of the weights that it begins with, if they are at hand.

    Where they aren't, a [model] that is given stands for theirs.
    """
    folder = config.train.init_from
    if not folder or (config.model != Architecture() and not Path(folder).exists()):
        return config
    from workload.train.fitting import take_model  # imports JAX

    problems: list[Problem] = []
    config = take_model(config, problems)
    if problems:
        raise ConfigError("workload preflight", problems)
    return config


def _check_options(options: argparse.Namespace) -> None:
    problems = []
    if not 0 <= options.recovery_min < math.inf:
        rule = "must be 0 minutes or more"
        problems.append(Problem("--recovery-min", f"{options.recovery_min:g}", rule, "10 is usual"))
    if options.plot and not options.search:
        rule = "draws what --search finds"
        problems.append(Problem("--plot", str(options.plot), rule, "add --search, or leave --plot out"))
    if options.html and options.search:
        rule = "shows one answer, --search makes many"
        problems.append(Problem("--html", str(options.html), rule, "leave one of them out"))
    for flag, file in (("--plot", options.plot), ("--html", options.html)):
        if file and not file.absolute().parent.is_dir():
            rule = "must lie in a folder that is there"
            problems.append(Problem(flag, str(file), rule, "make the folder, or name another"))
    if problems:
        raise ConfigError("workload preflight", problems)


def _check(config: Config, slices: Slices) -> None:
    """What the compiler would refuse in words of its own."""
    problems = []
    if not config.model.vocab_size:
        fix = "set it to the tokenizer's; a run may leave it to the tokens"
        problems.append(Problem("model.vocab_size", "0", "preflight has no tokens to take it from", fix))
    if slices.chips_each % config.mesh.data:
        rule = f"must divide the chips of a slice, {slices.chips_each}"
        problems.append(Problem("mesh.data", str(config.mesh.data), rule, "1, or a divisor"))
    problems += divisibility.problems(config, slices.chips, "tpu", "the chips", "chip")
    if problems:
        raise ConfigError("workload preflight", problems)


def _say(line: str) -> None:
    print(f"  … {line}", file=sys.stderr, flush=True)
