"""Facts about Google Cloud as data, which the program obeys and the emulated cloud enforces.

One file for each subject: `NAME.toml`, whose blocks name their source and the day it was read. Beside it a
module with typed values. Imports none of the other packages.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any


@cache
def table(name: str) -> Mapping[str, Any]:
    """Return the blocks of `NAME.toml`."""
    text = resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return MappingProxyType(tomllib.loads(text))
