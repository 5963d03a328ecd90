"""Rules on labels, wherever a section has some."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from infra.errors import Problem
from infra.settings.schema import GcpSettings, Settings, keys_of, records

MAX_LABELS = 64  # https://cloud.google.com/resource-manager/docs/labels-overview


def problems(settings: Settings, classes: Mapping[str, type], broken: set[str]) -> Iterator[Problem]:
    """Labels that the program sets itself, and more than Google allows with these.

    `classes`: of the sections, by name.
    """
    default = settings[GcpSettings].default_labels
    for name, kind in classes.items():
        section: Any = settings.get(kind)
        for path, labels, reserved in _of(f"{name}:", section) if section else ():
            for key in sorted(labels.keys() & set(reserved)):
                rule = "the program sets this label itself"
                yield Problem(f"{path}.{key}", f'"{labels[key]}"', rule, "remove it")
            own = len(reserved) + 1  # with the one by which the provider marks what it makes
            most = MAX_LABELS - own
            number, beside = len({*default, *labels}), bool(default) and labels is not default
            if number > most and labels and "gcp:defaultLabels" not in broken:
                output = f"{number} labels{' with gcp:defaultLabels' if beside else ''}"
                rule = f"a resource has at most {MAX_LABELS} labels, {own} of them the program's"
                yield Problem(path, output, rule, f"keep {most}")


def _of(prefix: str, section: Any) -> Iterator[tuple[str, Mapping[str, str], Collection[str]]]:
    for key, item in keys_of(type(section)).items():
        value = getattr(section, item.name)
        if item.metadata["reserved"]:
            yield f"{prefix}{key}", value, item.metadata["reserved"]
        for i, record in enumerate(value if key in records(type(section)) else ()):
            yield from _of(f"{prefix}{key}[{i}].", record)
