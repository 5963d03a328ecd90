"""Commands that a host can start: the rule of a slice's `run`.

The host obeys the same one (workload/host/unit.py); a test holds the two equal, since neither
may import the other.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import resources
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any

from infra.errors import Problem
from settings_schema.parser import NOUNS, choice, nearest
from settings_schema.rules import SCHEME

COMMANDS = ("activations", "checkpoints", "data", "extract", "goodput", "preflight", "train")
HOST_COMMAND = "slurmd"
"""Command of hosts alone, in the records of the Slurm layer's slices."""
PROGRAMS = ("bash", "python", "python3", "sh")
MAX_CHARACTERS = 2000
TRAIN_OPTIONS = ("--dir", "--name", "--set")
TRAIN_SWITCHES = ("--extend",)
EXTRACT_OPTIONS = ("--dir", "--format", "--name", "--point", "--set", "--slice", "--stream")
EXTRACT_SWITCHES = ("--estimate", "--json")
RUN_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")

_WORKLOAD = resources.files("workload")


def _configs(*parts: str) -> list[str]:
    folder = _WORKLOAD.joinpath(*parts, "configs")
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".toml"))


# Configs that hosts have without anybody's code.
PACKAGED = {"train": _configs(), "extract": _configs("extract")}
PREPROCESSES = _configs("preprocess")
KEYS_FILE = "run_keys.json"
KEYS: Mapping[str, Mapping[str, str | list[str]]] = json.loads(
    Path(__file__).with_name(KEYS_FILE).read_text("utf-8")
)
"""Keys that `--set` may name, by program, with the names of their types or, where they are few, their values;
empty for lists and tables.

tests/docs/test_run_keys.py writes the file from what the workload declares.
"""
OPTIONS = KEYS["options"]
"""Options of the workload's other commands, such as "data prepare"."""
PLACES = ("data.path", "observe.eval_path", "train.init_from", "model.weights")
"""Folders that hosts read from their mount, of the environment's bucket alone; `--dir` and `--stream` may be
in any bucket that its owner lets the hosts' account read or write."""
DATA_MOUNT = "/mnt/data"
"""Mount point of the data disk, on hosts and in pods of the queue."""
KINDS: Mapping[str, type] = {"bool": bool, "int": int, "float": float, "str": str}
_BUCKET = re.compile(r"gs://([^/]+)(/.*)?")
_PATH = re.compile(r"\.?/[A-Za-z0-9._+/-]+")


def can_start(run: str) -> bool:
    """Return True if a host can make a service of `run`."""
    words = split(run)
    return bool(words) and (
        words[0] in (*COMMANDS, *PROGRAMS, HOST_COMMAND)
        or (is_path(words[0]) and ".." not in words[0].split("/"))
    )


def split(run: str) -> list[str]:
    """Split `run` into words; none if no shell could split or print it."""
    run = run.strip()
    try:
        return shlex.split(run) if len(run) <= MAX_CHARACTERS and run.isprintable() else []
    except ValueError:
        return []


def is_path(word: str) -> bool:
    """Return True if `word` is a program's path: absolute, or in the folder of the user's code."""
    return _PATH.fullmatch(word) is not None


@dataclass(frozen=True)
class Training:
    """Arguments of `train …`; `folder` is None where the run is stored in the bucket."""

    config: str
    name: str
    folder: str | None
    changes: tuple[str, ...]


def training(run: str) -> Training | None:
    """Parse a `run` of the trainer; None for other programs. Raises ValueError as the trainer would."""
    program, *words = split(run) or [""]
    if program != "train":
        return None
    config, name, options = _parsed(program, words, TRAIN_OPTIONS, TRAIN_SWITCHES)
    return Training(config, name, options["--dir"][-1] if options["--dir"] else None, tuple(options["--set"]))


@dataclass(frozen=True)
class Extraction:
    """Arguments of `extract …`; `words` are all of them."""

    config: str
    name: str
    stream: str
    changes: tuple[str, ...]
    words: tuple[str, ...]


def extraction(run: str) -> Extraction | None:
    """Parse a `run` of the extractor; None for other programs. Raises ValueError as it would."""
    program, *words = split(run) or [""]
    if program != "extract":
        return None
    config, name, options = _parsed(program, words, EXTRACT_OPTIONS, EXTRACT_SWITCHES)
    if not options["--stream"]:
        raise ValueError("extract takes --stream URL: streams that `workload data streams` wrote")
    return Extraction(config, name, options["--stream"][-1], tuple(options["--set"]), tuple(words))


def other_options(run: str) -> None:
    """Check command and options of the workload's other commands. Raises ValueError as they would."""
    program, *words = split(run) or [""]
    commands = [name for name in OPTIONS if name.split()[0] == program]
    if commands and program not in OPTIONS:
        program = f"{program} {words[0] if words else ''}".strip()
        if program not in OPTIONS:
            raise ValueError(f"{program} is none of the commands {', '.join(commands)}")
    options = takewhile(lambda word: word != "--", words)
    for option in (word.partition("=")[0] for word in options if commands and word.startswith("--")):
        if option not in OPTIONS[program]:
            raise ValueError(f"{option} isn't an option of {program}: {', '.join(OPTIONS[program])}")


def elsewhere(path: str, run: str, bucket: str) -> Iterator[Problem]:
    """Yield folders of `run`, the setting at `path`, that hosts read from `bucket` alone, in another one."""
    for key, place in _places(_changes(run)):
        match = _BUCKET.fullmatch(place)
        if match and match[1] != bucket:
            rule = f"hosts read {key} from gs://{bucket} or a disk, not from gs://{match[1]}"
            yield Problem(path, f'"{run}"', rule, f"gcloud storage cp -r {place} gs://{bucket}/data")


def on_disk(path: str, run: str, bucket: str, environment: str) -> Iterator[Problem]:
    """Yield folders of `run`, the setting at `path`, that hosts without a data disk can't have."""
    for key, place in _places(_changes(run)):
        on_mount = PurePosixPath(place).is_relative_to(DATA_MOUNT)
        if place and (on_mount or not place.startswith(("gs://", "/"))):
            name = PurePosixPath(place).name
            rule = f"hosts read {key} = {place} from the data disk, and no data:snapshot makes one"
            fix = f"tpu data put {environment} FOLDER, then {key}=gs://{bucket}/data/{name}; or data:snapshot"
            yield Problem(path, f'"{run}"', rule, fix)


def _changes(run: str) -> list[str]:
    words = split(run)
    return [word.removeprefix("--set=") for word in words] if words and words[0] in PACKAGED else []


def _places(changes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the keys among `changes` that name folders, not runs, with their values."""
    for key, _, text in (change.partition("=") for change in changes):
        if key.strip() in PLACES and not (place := str(_value(text.strip()))).startswith("run:"):
            yield key.strip(), place


def given(started: Training | Extraction, folder: Path | None) -> dict[str, Any]:
    """Return the settings that a run's own config in `folder` gives, with its `base` and its changes, by key.

    Packaged configs, and files that the trainer refuses, give none.
    """
    tables: list[dict[str, Any]] = []
    path, read = folder / started.config if folder else None, set[Path]()
    while path and path.is_file() and path not in read:
        read.add(path)
        try:
            tables.append(tomllib.loads(path.read_text("utf-8")))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            break
        path = path.parent / str(tables[-1].get("base", ""))
    values = {
        f"{section}.{key}": value
        for table in reversed(tables)
        for section, entries in table.items()
        if isinstance(entries, dict)
        for key, value in entries.items()
    }
    changes = (change.partition("=") for change in started.changes)
    return values | {key.strip(): _value(text.strip()) for key, _, text in changes}


def _parsed(
    program: str, words: Sequence[str], options: Sequence[str], switches: Sequence[str]
) -> tuple[str, str, dict[str, list[str]]]:
    """Return config, name and options of a run. Raises ValueError as its program would."""
    configs: list[str] = []
    values: dict[str, list[str]] = {option: [] for option in options}
    rest = iter(words)
    for word in rest:
        option, given, value = word.partition("=")
        if not word.startswith("-"):
            configs.append(word)
        elif word in switches:
            continue
        elif option not in options:
            raise ValueError(f"{option} isn't an option of {program}: {', '.join((*options, *switches))}")
        elif not (value := value if given else next(rest, "")):
            raise ValueError(f"{option} has no value")
        else:
            values[option].append(value)
    if len(configs) != 1:
        raise ValueError(f"{program} takes one config, not {len(configs)}")
    name = [PurePosixPath(configs[0]).stem, *values["--name"]][-1]
    if not RUN_NAME.fullmatch(name):
        raise ValueError(f"a run is called by a-z, 0-9, '-', '_' and '.', not {name}: --name NAME")
    if wrong := [change for change in values["--set"] if not change.partition("=")[1]]:
        raise ValueError(f"--set takes SECTION.KEY=VALUE, not {wrong[0]}")
    for change in values["--set"]:
        _refuse_unknown(program, change)
    options_given = [(option, value) for option in ("--dir", "--stream") for value in values.get(option, ())]
    for key, place in (*_places(values["--set"]), *options_given):
        if SCHEME.match(place) and not _BUCKET.fullmatch(place):
            raise ValueError(f"{key} is a folder, or gs://BUCKET/FOLDER, not {place}")
    return configs[0], name, values


def _refuse_unknown(program: str, change: str) -> None:
    """Raise ValueError for a key that the program's configuration hasn't, or a value of another type."""
    key, _, text = change.partition("=")
    key, known = key.strip(), KEYS[program]
    parents = [key[:index] for index, character in enumerate(key) if character == "."]
    if key not in known and not any(known.get(parent) == "" for parent in parents):
        near = nearest(key, known)
        fix = f": perhaps {near} was meant" if near else ""
        raise ValueError(f"--set {key} isn't a setting of {program}{fix}")
    allowed, value = known.get(key, ""), _value(text.strip())
    if isinstance(allowed, list):
        if value not in allowed:
            raise ValueError(f"--set {change}: no value of {key}; {choice(str(value), allowed)}")
        return
    kind = KINDS.get(allowed)
    if kind and type(value) is not kind and not (kind is float and type(value) is int):
        raise ValueError(f"--set {change}: {key} is {NOUNS[kind]}")


def _value(text: str) -> Any:
    """Return the value of a change, as the program reads it: TOML, else a bare word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def named(program: Sequence[str], run: str) -> Sequence[str]:
    """Add the run's name to a training or an extraction without: jobs of one config write a run each."""
    has_name = any(word.partition("=")[0] == "--name" for word in program)
    return [*program, "--name", run] if program[0] in PACKAGED and not has_name else program


def own_file(run: str) -> str | None:
    """Return the file of `tpu:code` that `run` needs, e.g. "start.sh" of `./start.sh`, or None."""
    words = split(run)
    if len(words) > 1 and words[0] in PACKAGED and not words[1].startswith(("-", "/")):
        return None if words[1] in PACKAGED[words[0]] else words[1].removeprefix("./")
    if words and words[0].startswith("./"):
        return words[0].removeprefix("./")
    if len(words) > 1 and words[0] in PROGRAMS and not words[1].startswith(("-", "/")):
        return words[1].removeprefix("./")
    return None


def wrong_options(path: str, run: str) -> Iterator[Problem]:
    """Yield a problem of `run`, the setting at `path`, that the workload would end with at once."""
    try:
        training(run)
        extraction(run)
        other_options(run)
    except ValueError as error:
        program, examples = split(run)[0], {"train": "train tiny.toml --name first"}
        examples["extract"] = "extract qwen2.5-0.5b.toml --stream gs://BUCKET/streams"
        known = f"see tpu workload {program} --help"
        fix = f"write e.g. {examples[program]}" if program in examples else known
        yield Problem(path, f'"{run}"', str(error), fix)


def missing_file(path: str, run: str) -> Iterator[Problem]:
    """Yield a problem of `run`, the setting at `path`, if it needs a file of tpu:code, which isn't set."""
    if file := own_file(run):
        packaged = PACKAGED.get(split(run)[0], [])
        near = get_close_matches(file, packaged, 1)
        yield Problem(
            path,
            f'"{run}" without tpu:code',
            f"nothing brings {file} to the hosts, whose disks are new after every preemption",
            f"perhaps {near[0]} was meant"
            if near
            else f"write tpu:code: and the folder that holds it, then tpu publish; or name "
            f"{'one of ' + ', '.join(packaged) if packaged else 'a program by its absolute path'}",
        )
