"""Mutants of good settings, made from what the schema declares: each is refused, or goes up.

A mutant that is `wrong` by its making must be refused under the path it names. What an edit comes to isn't
known beforehand: it is refused in words, or shown to be good by an `up`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import Field, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pulumi
import yaml

from infra.core.environment import layers_on
from infra.engine.registry import layers, section_classes
from infra.engine.settings import from_file, parse
from infra.errors import SettingsError
from infra.layers.tpu import startup
from infra.settings.schema import keys_of, records
from infra.settings.sources import ROOT, as_pulumi_hands_it_over
from infra.settings.yaml_file import load
from tests.infra.declared import EVERYTHING
from tests.infra.recording import BASE, Recording, execute

Values = dict[str, Any]
Where = tuple[str | int, ...]

FLEET = [
    {"name": "one", "topology": "2x4", "zones": ["us-east5-a"], "reserved": False, "labels": {"who": "ml"}},
    {
        "name": "many", "acceleratorType": "v6e-8", "zones": ["us-east5-a", "us-east5-b"], "count": 4,
        "fallbackZones": ["us-east5-b"], "firstWorkerId": 3, "spot": True,
        "run": "extract qwen2.5-0.5b.toml --stream gs://b/s", "runtimeVersion": "v2-alpha-tpuv6e",
    },
    {"name": "job", "acceleratorType": "v6e-16", "zones": ["us-east5-b"], "count": 2, "multislice": True,
     "run": "train tiny.toml --name job"},
]  # fmt: skip
FULL: Values = {
    **BASE, **EVERYTHING, "tpu:slices": FLEET,
    # No price of queued pools is known, so none stands beside a budget.
    "gke:tpuPools": [pool for pool in EVERYTHING["gke:tpuPools"] if not pool.get("queued")],
    "storage:storageClass": "STANDARD", "storage:versioning": True, "storage:hierarchicalNamespace": False,
    "storage:noncurrentVersionDays": 30, "storage:softDeleteDays": 30, "storage:unfinishedUploadDays": 3,
    "storage:labels": {"a": "b"}, "storage:serviceAccountId": "tpu-training", "network:name": "tpu-training",
    "network:mtu": 8896, "network:subnetRanges": {"us-east5": "10.9.0.0/24"}, "network:flowLogSampling": 0.5,
    "network:sshSourceRanges": ["35.235.240.0/20"], "data:sizeGib": 1000, "data:throughputMibps": 2400,
    "data:diskPrefix": "second", "data:labels": {"a": "b"},
    "tpu:runtimeVersion": "v2-alpha-tpuv6e", "tpu:metadataTimeoutS": 3600,
    "tpu:barrierTimeoutS": 900, "tpu:osLogin": True, "tpu:secureBoot": False, "tpu:additionalZones": [],
    "fleet:dollarsPerHour": 1000, "fleet:dollarsPerRun": 1000, "fleet:preemptionsPerDay": 10,
    "fleet:failuresPerDay": 3, "fleet:heartbeatTimeoutS": 1800,
}  # fmt: skip
WRONG_TYPES: dict[Any, list[Any]] = {
    str: [["x"], {"a": "b"}],
    int: ["ten", 1.5, [1], True, {"a": 1}],
    bool: ["maybe", 2, [True], "yes"],
    float: ["much", [1.0], True],
    tuple: ["text", 3, {"a": "b"}, [3], [["x"]], [None]],
    dict: ["text", ["a"], {"a": 3}, {"a": {"b": "c"}}],
}
TEXTS = ("", " ", "A b", "x" * 600, "ünï", "-", "a\nb", "_a", "goog-x", "0", "/", "us-east5", "10.0.0.1/8")
NUMBERS = (-1, 0, 10**9, 0.5)
CASES = [  # in the environment of any name: a mutant has none of its own
    item
    for item in yaml.safe_load((Path(__file__).parent / "bad_settings.yaml").read_text())
    if "environment" not in item
]
READ = frozenset(path for layer in layers() for paths, _ in layer.rules for path in paths) | {
    "gcp:defaultLabels"  # infra/settings/labels.py counts them with each layer's
}
LETTERS = "abz059-_./:@A "


@dataclass(frozen=True)
class Mutant:
    """Settings, with what was done to them.

    Attributes:
        values: of the file.
        kind: of each change.
        where: each change was made.
        wrong: paths that must be named; none of an edit.
        of: the good file's name.
    """

    values: Values
    kind: str
    where: tuple[Where, ...]
    wrong: frozenset[str] = field(default_factory=frozenset)
    of: str = ""

    @property
    def label(self) -> str:
        """Paths of the changes, without numbers of items."""
        return " + ".join(
            ":".join(str(part) for part in item if not isinstance(part, int)) for item in self.where
        )


@dataclass(frozen=True)
class Place:
    """A setting that stands in a file."""

    where: Where
    path: str
    item: Field[Any]
    base: Any  # str, int, bool, float, tuple or dict
    known: frozenset[str]  # keys beside it that exist


def good() -> dict[str, Values]:
    """Good settings by name: the two files of the project, and one in which nearly everything is said."""
    files = {name: load((ROOT / f"Pulumi.{name}.yaml").read_text())["config"] for name in ("dev", "prod")}
    return {
        **{name: {**item, "tpu:bundle": BASE["tpu:bundle"]} for name, item in files.items()},
        "full": FULL,
    }


def places(values: Values) -> Iterator[Place]:
    """Every setting of a file, those of slices too."""
    for section, kind in section_classes().items():
        yield from _of(kind, values, (), f"{section}:")
        for key, item in records(kind).items():
            path = f"{section}:{key}"
            for i, entry in enumerate(values.get(path, ())):
                yield from _of(item, entry, (path, i), f"{path}[{i}].")


def _of(kind: type, values: Values, where: Where, prefix: str) -> Iterator[Place]:
    hints, keys = get_type_hints(kind), keys_of(kind)
    named = "" if where else prefix
    for key, item in keys.items():
        if f"{named}{key}" in values:
            hint = hints[item.name]
            hint = get_args(hint)[0] if type(None) in get_args(hint) else hint
            origin = get_origin(hint)
            base = hint if origin is None else tuple if origin is tuple else dict
            yield Place((*where, f"{named}{key}"), f"{prefix}{key}", item, base, frozenset(keys))


def mutants(count: int, seed: int) -> Iterator[Mutant]:
    """So many, always the same of a seed: a fifth of two changes at once."""
    rng, files = random.Random(seed), good()
    made = 0
    while made < count:
        of = rng.choice(list(files))
        known = list(places(values := files[of]))
        single = _single(rng, values, rng.choice(known))
        if single is not None and made % 5 == 3:
            single = _double(rng, single, rng.choice(known))
        elif made % 5 == 4:
            of, single = "case", _beside(rng, rng.choice(CASES))
        if single is not None:
            made += 1
            yield replace(single, of=of)


def endless() -> Iterator[Mutant]:
    """Each text of FULL, alone, in a list or as a label, with its last letter 100,000 times."""
    for place in places(FULL):
        existing, key = _get(FULL, place.where), ""
        text = next(iter(existing), None) if place.base is tuple else existing
        if place.base is dict:
            key, text = next(iter(existing.items()))
        if isinstance(text, str):
            text += text[-1] * 100_000
            changed = [text] if place.base is tuple else {key: text} if place.base is dict else text
            yield Mutant(_put(FULL, place.where, changed), "endless", (place.where,), frozenset({place.path}))


def _single(rng: random.Random, values: Values, place: Place) -> Mutant | None:
    make: Callable[[random.Random, Values, Place], Mutant | None] = rng.choice(
        (_type, _range, _key, _section, _null, _edit, _edit, _gone)
    )
    return make(rng, values, place)


def _double(rng: random.Random, first: Mutant, place: Place) -> Mutant | None:
    """Another change beside the first, so that two things must be named."""
    where = first.where[0]
    if not first.wrong or _nested(where, place.where) or _nested(place.where, where):
        return None
    second = _single(rng, first.values, place)
    if second is None or not second.wrong:
        return None
    return Mutant(
        second.values, f"{first.kind} + {second.kind}", (where, place.where), first.wrong | second.wrong
    )


def _beside(rng: random.Random, case: dict[str, Any]) -> Mutant | None:
    """A change beside settings that break a rule between settings, which reads nothing of the change."""
    values = {key: item for key, item in {**BASE, **case["change"]}.items() if item is not None}
    if not isinstance(values.get("tpu:slices"), list) or not all(
        isinstance(value, dict) for value in values["tpu:slices"]
    ):
        return None
    known = {problem.partition(" = ")[0] for problem in case["problems"]}
    sections = {key.partition(":")[0] for key in values}
    unread = {
        key: item
        for key, item in FULL.items()
        if key.partition(":")[0] in sections
        and key not in case["change"]
        and not any(_part(key, path) or _part(path, key) for path in READ | known)
    }
    values = {**unread, **values}
    second = _single(rng, values, rng.choice([place for place in places(values) if place.where[0] in unread]))
    if second is None or not second.wrong:
        return None
    return Mutant(second.values, f"rule + {second.kind}", (("rule",), second.where[0]), second.wrong | known)


def _part(path: str, other: str) -> bool:
    return path == other or path.startswith((f"{other}[", f"{other}."))


def _nested(where: Where, other: Where) -> bool:
    return where[: len(other)] == other[: len(where)]


def _put(values: Values, where: Where, value: Any) -> Values:
    """A copy with another value; None takes the key away."""
    copied = deepcopy(values)
    inner: Any = copied
    for part in where[:-1]:
        inner = inner[part]
    del inner[where[-1]]
    if value is not _GONE:
        inner[where[-1]] = value
    return copied


_GONE = object()


def _get(values: Values, where: Where) -> Any:
    result: Any = values
    for part in where:
        result = result[part]
    return result


def _type(rng: random.Random, values: Values, place: Place) -> Mutant:
    wrong = rng.choice(WRONG_TYPES[place.base])
    return Mutant(_put(values, place.where, wrong), "type", (place.where,), frozenset({place.path}))


def _range(rng: random.Random, values: Values, place: Place) -> Mutant | None:
    """A value that its own rule refuses."""
    rule = place.item.metadata["rule"]
    choices: list[Any] = list(NUMBERS if place.base in (int, float) else TEXTS)
    if rule is None or place.base is bool:
        return None
    if place.base is int:
        choices = [choice for choice in choices if isinstance(choice, int)]
    choices = [choice for choice in choices if not rule.ok(choice)]
    if not choices:
        return None
    value = rng.choice(choices)
    value = [value] if place.base is tuple else {"a": value} if place.base is dict else value
    return Mutant(_put(values, place.where, value), "range", (place.where,), frozenset({place.path}))


def _key(rng: random.Random, values: Values, place: Place) -> Mutant | None:
    """The key one letter off."""
    whole = str(place.where[-1])
    prefix, key = place.path[: len(place.path) - len(whole.rpartition(":")[2])], whole.rpartition(":")[2]
    other = _off(rng, key)
    if other in place.known or not other.strip():
        return None
    renamed = _put(values, place.where, _GONE)
    namespace = whole.removesuffix(key)
    _get(renamed, place.where[:-1])[f"{namespace}{other}"] = _get(values, place.where)
    return Mutant(renamed, "key", (place.where,), frozenset({f"{prefix}{other}"}))


def _section(rng: random.Random, values: Values, place: Place) -> Mutant | None:
    """The layer's name one letter off."""
    section, colon, key = str(place.where[0]).partition(":")
    other = f"{_off(rng, section)}{colon}{key}"
    if len(place.where) > 1 or other.partition(":")[0] in (*section_classes(), "pulumi"):
        return None
    renamed = _put(values, place.where, _GONE)
    return Mutant({**renamed, other: values[place.where[0]]}, "layer", (place.where,), frozenset({other}))


def _null(rng: random.Random, values: Values, place: Place) -> Mutant:
    return Mutant(_put(values, place.where, None), "null", (place.where,), frozenset({place.path}))


def _gone(rng: random.Random, values: Values, place: Place) -> Mutant:
    return Mutant(_put(values, place.where, _GONE), "gone", (place.where,))


def _edit(rng: random.Random, values: Values, place: Place) -> Mutant:
    """Another value of the type: a letter off, a number moved, an item more or less."""
    return Mutant(_put(values, place.where, _edited(rng, _get(values, place.where))), "edit", (place.where,))


def _edited(rng: random.Random, value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return rng.choice([value + 1, value - 1, value * 2, value // 2, value * 10, -value])
    if isinstance(value, str):
        return _off(rng, value)
    if isinstance(value, dict):
        key = rng.choice([*value, "x"])
        return {**value, rng.choice([key, _off(rng, key)]): _off(rng, str(value.get(key, "y")))}
    if value and rng.random() < 0.7:
        i = rng.randrange(len(value))
        return [*value[:i], *rng.choice([[], [value[i]] * 2, [_edited(rng, value[i])]]), *value[i + 1 :]]
    return [*value, "us-east5-a"]


def _off(rng: random.Random, word: str) -> str:
    """A word with a letter more, less, changed or moved."""
    i, letter = rng.randrange(len(word) + 1), rng.choice(LETTERS)
    rest = word[i + 1 :]
    moved = f"{word[:i]}{rest[:1]}{word[i : i + 1]}{rest[1:]}"
    choice = rng.choice(
        [f"{word[:i]}{letter}{word[i:]}", f"{word[:i]}{rest}", f"{word[:i]}{letter}{rest}", moved]
    )
    return choice if choice != word else f"{word}x"


def judged(mutant: Mutant, folder: Path) -> list[str]:
    """The paths of what is said of a mutant, as a file; none of one that is accepted. All else is raised."""
    (folder / "Pulumi.dev.yaml").write_text(json.dumps({"config": mutant.values}))
    try:
        from_file("dev", folder)
    except SettingsError as error:
        return [problem.path for problem in error.problems if problem.rule and problem.fix]
    return []


def missing(mutant: Mutant, message: list[str]) -> list[str]:
    """Return the wrong paths that no message names."""
    named = tuple(message)
    return [path for path in sorted(mutant.wrong)
            if not any(_part(item, path) for item in named)]  # fmt: skip


def refused_by_up(values: Values) -> str:
    """Return the message of the first layer that refuses to come up; layers get the outputs of those before.

    Any other error is raised.
    """
    stacks: dict[str, dict[str, Any]] = {}
    bundles = (values.get(key) for key in ("tpu:bundle", "slurm:bundle"))
    published = (*(f"manifests/{id_}" for id_ in bundles), f"blobs/{startup.script_sha256()}")
    text = as_pulumi_hands_it_over(values, "f")
    for layer in (item.name for item in layers_on(parse("dev", text, "f"))):
        bucket = stacks["storage"]["bucketName"] if stacks else ""
        objects = frozenset(f"gs://{bucket}/bundles/{name}" for name in published)
        recording = Recording(False, stacks, objects, values.get("network:mtu", 8896))
        try:
            execute(layer, values, recording)
        except pulumi.RunError as error:
            return str(error)
        stacks[layer] = recording.exports
    return ""


def merged(accepted: Sequence[Mutant], folder: Path) -> list[Mutant]:
    """The same changes in fewer files: those that are good beside one another."""
    result: list[Mutant] = []
    for entry in accepted:
        for i, other in enumerate(result):
            if other.of != entry.of or any(
                _nested(a, b) or _nested(b, a) for a in entry.where for b in other.where
            ):
                continue
            both = other
            for where in entry.where:
                try:
                    change = _get(entry.values, where)
                except KeyError:
                    change = _GONE
                values = _put(both.values, where, change)
                both = Mutant(values, "edit", (*both.where, where), of=entry.of)
            if not judged(both, folder):
                result[i] = both
                break
        else:
            result.append(entry)
    return result
