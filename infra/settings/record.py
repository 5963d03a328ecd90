"""Settings that commands find out write into `Pulumi.<env>.yaml`: one line, every other byte as it was."""

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from infra.errors import InfraError


def record(environment: str, key: str, value: str | dict[str, str], root: Path) -> bool:
    """Write a setting; an empty value takes its line away.

    Returns whether the file changed.

    Raises:
        InfraError: the file has no `config:`, or what stands there under this key is more than a line.
    """
    path = (root / f"Pulumi.{environment}.yaml").resolve()
    before = path.read_bytes().decode()  # as text its line ends would become this machine's
    plain = isinstance(value, str) and yaml.safe_load(value) == value
    line = f"{key}: {value if plain else json.dumps(value, sort_keys=True)}"
    there = re.compile(rf"(?m)^([ ]+){re.escape(key)}:[^\r\n]*(\r?\n|\Z)")
    if not value:
        after = there.sub("", before, count=1)
    elif there.search(before):
        after = there.sub(lambda found: f"{found[1]}{line}{found[2]}", before, count=1)
    else:
        first = re.compile(r"(?m)^config:[^\r\n]*(\r?\n)([ ]+)")
        after = first.sub(lambda found: f"{found[0]}{line}{found[1]}{found[2]}", before, count=1)
    wanted = {**_config(before), key: value}
    if _config(after) != (wanted if value else {name: wanted[name] for name in wanted if name != key}):
        raise InfraError(f"{path.name} isn't changed: write there by hand, under config: '  {line}'")
    if after == before:
        return False
    # Whole or not at all: `pulumi up` may be reading it.
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.write_bytes(after.encode())
        fresh.chmod(path.stat().st_mode)
        os.replace(fresh, path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise InfraError(f"{path.name} can't be written: {error.strerror}: {line}") from None
    return True


def _config(text: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    config = found.get("config") if isinstance(found, dict) else None
    return config if isinstance(config, dict) else {}
