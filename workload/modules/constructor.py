"""Constructor of a user's module: its import, its arguments, and the user's exceptions as messages."""
# mypy: allow-untyped-calls

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import linen

from settings_schema.parser import nearest, shown
from workload.errors import ConfigError, Problem
from workload.modules import source
from workload.modules.config import ModuleConfig

_GIVEN = ("rngs", "vocab_size", "dtype")
"""Arguments of a constructor that the trainer gives, where it takes them."""


class Constructor:
    """Class of a module, or function that returns one.

    Attributes:
        make: it.
        takes: arguments among those that the trainer gives.
        linen: True for a class of `flax.linen`.
    """

    def __init__(self, config: ModuleConfig, dtype: Any):
        """Import it, and compare its arguments with the settings.

        Raises:
            ConfigError: lists why it can't be called.
        """
        self._config = config
        self._sources = {str(path) for path in source.files(config.module).values()}
        self.make = self._imported()
        if not self._sources:
            rule = "its source isn't found, so that a change of it would go unnoticed"
            raise refusal(self.problem(rule, "put it into a file or folder of its own name, not an archive"))
        arguments = _parameters(self.make)
        self.takes = {name for name in _GIVEN if name in arguments}
        self.linen = isinstance(self.make, type) and issubclass(self.make, linen.Module)
        self._require_settings(arguments, dtype)

    def tried(self, action: str, call: Callable[[], Any]) -> Any:
        """Return the result of the user's code; its exception becomes a ConfigError with file and line."""
        try:
            return call()
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:
            frames = traceback.extract_tb(error.__traceback__)
            known = [frame for frame in frames if frame.filename in self._sources]
            place = f" at {Path(known[-1].filename).name}:{known[-1].lineno}" if known else ""
            text = (str(error).strip() or "no message").splitlines()[0]
            fix = "mend it; see docs/guides/flax.md"
            if isinstance(error, ModuleNotFoundError) and not self._sources:
                fix = "start in the folder that holds it, or install it; `tpu run` sends a folder"
            rule = f"{action} raises {type(error).__name__}{place}: {text}"
            raise refusal(self.problem(rule, fix)) from error

    def problem(self, rule: str, fix: str) -> Problem:
        """Return a problem of the module."""
        return Problem("model.module", self._config.module, rule, fix)

    def _imported(self) -> Callable[..., Any]:
        name, _, attribute = self._config.module.partition(":")
        if (folder := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, folder)  # as for a script
        module = self.tried("its import", lambda: importlib.import_module(name))
        made = getattr(module, attribute, None)
        if callable(made):
            return made  # type: ignore[no-any-return]
        near = nearest(attribute, [entry for entry in vars(module) if callable(getattr(module, entry))])
        file = getattr(module, "__file__", None) or name  # a folder without __init__.py has none
        fix = f"did you mean {name}:{near}?" if near else f"name a class of {file}"
        raise refusal(self.problem(f"{name} has no class {attribute}", fix))

    def _require_settings(self, arguments: Mapping[str, inspect.Parameter], dtype: Any) -> None:
        """Raise for settings that the constructor doesn't take, and for missing ones."""
        problems, given = [], self._config.settings
        takes_any = any(entry.kind is entry.VAR_KEYWORD for entry in arguments.values())
        for key, value in given.items():
            if key not in arguments and not takes_any:
                near = nearest(key, arguments)
                known = ", ".join(name for name in arguments if name != "rngs") or "nothing"
                fix = f"did you mean {near}?" if near else f"remove it; {self._config.module} takes {known}"
                rule = "the module's constructor doesn't take it"
                problems.append(Problem(f"model.settings.{key}", shown(value, texts=False), rule, fix))
        for key, entry in arguments.items():
            variable = entry.kind in (entry.VAR_KEYWORD, entry.VAR_POSITIONAL)
            if entry.default is entry.empty and not variable and key not in (*given, *_GIVEN):
                rule = f"required by the constructor of {self._config.module}"
                problems.append(Problem(f"model.settings.{key}", "nothing", rule, f"add {key} = …"))
        if "dtype" not in {*self.takes, *given} and dtype != jnp.float32:
            rule = "the module's constructor takes no dtype, so that its own dtypes apply"
            name = jnp.dtype(dtype).name
            problems.append(Problem("compute.dtype", name, rule, "let it take dtype, or set float32"))
        if problems:
            raise refusal(*problems)


def refusal(*problems: Problem) -> ConfigError:
    """Return the exception of some problems."""
    return ConfigError("config", problems)


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the arguments of a function, or of a class's constructor, by name."""
    try:
        if not isinstance(function, type):
            return inspect.signature(function).parameters
        parameters = dict(inspect.signature(function.__init__).parameters)  # type: ignore[misc]
    except (TypeError, ValueError):
        return {}
    for name in ("self", *(("parent", "name") if issubclass(function, linen.Module) else ())):
        parameters.pop(name, None)
    return parameters
