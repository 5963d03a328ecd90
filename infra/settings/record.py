"""Edits of `Pulumi.<env>.yaml` by commands and by Pulumi, which keep every other byte."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from infra.errors import InfraError
from infra.settings import yaml_file


def record(environment: str, key: str, value: str | dict[str, str], root: Path) -> bool:
    """Write a setting; an empty value takes its line away.

    Returns whether the file changed.

    Raises:
        InfraError: the file has no `config:`, or what stands there under this key is more than a line.
    """
    path = (root / f"Pulumi.{environment}.yaml").resolve()
    before = path.read_bytes().decode()  # as text its line ends would become this machine's
    plain = isinstance(value, str) and yaml_file.load(value) == value
    line = f"{key}: {value if plain else json.dumps(value, sort_keys=True)}"
    present = re.compile(rf"(?m)^([ ]+){re.escape(key)}:[^\r\n]*(\r?\n|\Z)")
    if not value:
        after = present.sub("", before, count=1)
    elif present.search(before):
        after = present.sub(lambda match: f"{match[1]}{line}{match[2]}", before, count=1)
    else:
        first = re.compile(r"(?m)^config:[^\r\n]*(\r?\n)([ ]+)")
        after = first.sub(lambda match: f"{match[0]}{line}{match[1]}{match[2]}", before, count=1)
    desired = {**_config(before), key: value}
    if _config(after) != (desired if value else {name: desired[name] for name in desired if name != key}):
        raise InfraError(f"{path.name} isn't changed: write there manually, under config: '  {line}'")
    if after == before:
        return False
    try:
        _replace(path, after)
    except OSError as error:
        raise InfraError(f"{path.name} can't be written: {error.strerror}: {line}") from None
    return True


@contextmanager
def formatting_kept(environment: str, root: Path) -> Iterator[None]:
    """Lets Pulumi write into the settings' file while this lasts, and takes back what it only formatted anew.

    A `pulumi` that makes a stack, or the keys of its secrets, writes the whole file as its YAML library
    would: 1000 becomes "1000", spaces and empty lines go. Afterwards the file is as it was, and its new keys
    beside `config:` (`encryptionsalt`, `secretsprovider`, `encryptedkey`) are lines at its end. A file whose
    settings were changed meanwhile stays as it is.
    """
    path = (root / f"Pulumi.{environment}.yaml").resolve()
    before = path.read_bytes().decode()
    try:
        yield
    finally:
        after = path.read_bytes().decode()
        if after != before and (merged := _merged(before, after)) is not None and merged != after:
            _replace(path, merged)


def _merged(before: str, after: str) -> str | None:
    """Merge new keys of `after` into `before`; None where their settings differ, or no key can be added."""
    old, new = _mapping(before), _mapping(after)
    if _as_pulumi_writes(_config(before)) != _as_pulumi_writes(_config(after)):
        return None
    keys = {key: value for key, value in new.items() if key != "config" and old.get(key) != value}
    for key in keys.keys() & old.keys():
        before = re.sub(rf"(?m)^{re.escape(key)}:.*\n?", "", before)
    newline = "\r\n" if "\r\n" in before else "\n"
    end = "" if before.endswith("\n") else newline
    merged = before + end + "".join(f"{key}: {value}{newline}" for key, value in keys.items())
    # A file in braces takes no further line.
    return merged if _mapping(merged) == {**old, **keys} else None


def _as_pulumi_writes(config: dict[str, Any]) -> dict[str, Any]:
    """Convert numbers and truth values to the texts that Pulumi writes for them."""
    plain = (bool, int, float)
    return {key: json.dumps(value) if isinstance(value, plain) else value for key, value in config.items()}


def _replace(path: Path, text: str) -> None:
    """Whole or not at all: `pulumi up` may be reading it. Raises OSError."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.write_bytes(text.encode())
        fresh.chmod(path.stat().st_mode)
        os.replace(fresh, path)
    except OSError:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise


def _mapping(text: str) -> dict[str, Any]:
    try:
        mapping = yaml_file.load(text)
    except (yaml.YAMLError, ValueError, LookupError):
        return {}
    return mapping if isinstance(mapping, dict) else {}


def _config(text: str) -> dict[str, Any]:
    config = _mapping(text).get("config")
    return config if isinstance(config, dict) else {}
