"""Settings of a user's module."""

from dataclasses import dataclass, field
from typing import Any

from settings_schema.rules import at_least, pattern
from settings_schema.schema import setting
from workload.settings import ruled

_NAME = pattern(
    r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*",
    "PACKAGE.MODULE:CLASS",
    "e.g. my_model:Model, of my_model.py",
)


@dataclass(frozen=True)
class ModuleConfig:
    """Module of `flax.nnx` or `flax.linen` in place of the decoder."""

    # your own module, instead of the settings above: a class, or a function that returns a module
    module: str = setting(rule=_NAME)
    settings: dict[str, Any] = field(default_factory=dict)  # arguments of its constructor
    # vocabulary for its constructor, if it has the argument; 0: that of the token files
    vocab_size: int = ruled(0, at_least(0), most=2**24)
