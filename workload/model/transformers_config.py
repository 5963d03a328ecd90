"""Reading of transformers' `config.json` by the rules that a config's [model] obeys.

Absent settings have the defaults of transformers 5; unsupported ones that would change the model are refused.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from settings_schema.parser import Parser, fields_of, shown
from workload.arguments import hub_fix
from workload.errors import ConfigError, Problem, WeightsError
from workload.model.architecture import FAMILIES, Architecture, RopeScaling, violations
from workload.model.transformers_families import IN_TRANSFORMERS

CONFIG = "config.json"
LOCAL, GLOBAL = "sliding_attention", "full_attention"

_ONLY = {"attention_bias": False, "partial_rotary_factor": 1.0}  # in all families

_NEEDED = {
    "hidden_size": "d_model",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "intermediate_size": "d_ff",
    "vocab_size": "vocab_size",
}
_OPTIONAL = {
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "sliding_window": "window",
}  # may be null
_KEYS = _NEEDED | _OPTIONAL | {
    "rms_norm_eps": "norm_epsilon",
    "tie_word_embeddings": "tie_embeddings",
    "query_pre_attn_scalar": "query_pre_attn_scalar",
}  # fmt: skip
_LONGEST = "max_position_embeddings"
_OF_WINDOWS = ("sliding_window", "query_pre_attn_scalar")  # other families' files may have them, unused
ROPE_KEYS = {
    "factor": "factor",
    "original_max_position_embeddings": "original_length",
    "low_freq_factor": "low_frequency_factor",
    "high_freq_factor": "high_frequency_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
}
# Supported settings of each kind of RoPE; those of `linear` hold for all. Others change the model.
_LINEAR = {"rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings"}
KINDS = {
    "linear": _LINEAR,
    "llama3": _LINEAR | {"low_freq_factor", "high_freq_factor"},
    "yarn": _LINEAR | {"beta_fast", "beta_slow"},
}


def read_architecture(folder: Path, name: str = "") -> Architecture:
    """Read the architecture in `config.json`; `name` is the folder's as the user gave it.

    Raises:
        WeightsError: the file is missing or no JSON.
        ConfigError: the decoder doesn't support the model; lists every such setting.
    """
    path = folder / CONFIG
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        fix = "name a folder of Hugging Face weights: config.json, model.safetensors"
        fix = hub_fix(name or str(folder), folder) or fix
        raise WeightsError(f"{path}: can't be read: {error.strerror}\n    fix: {fix}") from None
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: is not JSON: {error}\n    fix: get the file again") from None
    if not isinstance(content, dict):
        raise WeightsError(f"{path}: holds no settings\n    fix: get the file again")
    return architecture(content, str(path))


def architecture(content: Mapping[str, Any], source: str) -> Architecture:
    """Convert the content of a config.json; see `read_architecture`."""
    reader = _Reader(content)
    arch = reader.architecture()
    if reader.problems:
        raise ConfigError(source, sorted(set(reader.problems)))
    return arch


class _Reader:
    """Reader of one config.json; `problems` has all that are known."""

    def __init__(self, content: Mapping[str, Any]):
        self._content = content
        self.problems: list[Problem] = []
        self._rope = "rope_parameters"  # key of the settings that count
        name = content.get("model_type")
        known = isinstance(name, str) and name in FAMILIES
        if not known:
            rule = f"must be one of {', '.join(FAMILIES)}"
            self._report("model_type", name, rule, "use a model of these families")
        self._name = str(name) if known else "llama"
        self._family = IN_TRANSFORMERS[self._name]

    def architecture(self) -> Architecture:
        """Return the architecture; it is meaningless where there are problems."""
        self._refuse()
        settings = {key: value for key, value in self._content.items() if key in _KEYS}
        for key, value in self._family.defaults.items():
            settings.setdefault(key, value)
        for key in _OF_WINDOWS:
            if key not in self._family.defaults:
                settings.pop(key, None)
        for key in _OPTIONAL:
            if settings.get(key, 0) is None:
                del settings[key]
            elif key in settings and settings[key] == 0 and settings[key] is not False:
                self._report(key, settings.pop(key), "must be at least 1")
        for key in _NEEDED:
            if key not in settings:
                self._report(key, None, "is required")
        arch: Architecture = self._parsed(Architecture, _KEYS, settings, "")
        arch = self._with_kinds_of_layers(replace(arch, **FAMILIES[self._name]))
        arch = self._with_rope(arch)
        if not self.problems:
            self.problems += violations(arch, self._key)
        return replace(arch, kv_heads=arch.J, head_dim=arch.K) if not self.problems else arch

    def _refuse(self) -> None:
        """Report settings that the decoder doesn't support."""
        for key in ("quantization_config", "compression_config"):
            if self._content.get(key) is not None:
                rule = "its weights are quantized; this decoder reads float32, float16 and bfloat16"
                self._report(key, self._content[key], rule, "use the model that it was made from")
        for key, value in (_ONLY | dict(self._family.only)).items():
            if self._content.get(key, value) not in (value, None):
                rule = f"this decoder supports {json.dumps(value)} only"
                self._report(key, self._content[key], rule, "use a model without it")
        longest = self._content.get(_LONGEST)
        if longest is not None and (type(longest) is not int or longest < 1):
            self._report(_LONGEST, longest, "must be a whole number, at least 1")

    def _parsed(self, kind: Any, keys: Mapping[str, str], settings: Mapping[str, Any], prefix: str) -> Any:
        fields = fields_of(kind)
        parser = Parser(lambda _: {key: fields[name] for key, name in keys.items()})
        parsed = parser.section(prefix, kind, settings)
        for problem in parser.problems:
            value = settings[problem.path.removeprefix(prefix)]
            self._report(problem.path, value, problem.rule)
        return parsed

    def _with_kinds_of_layers(self, arch: Architecture) -> Architecture:
        """Add window and pattern of the layers, from `layer_types` or Gemma's `sliding_window_pattern`."""
        types = self._content.get("layer_types")
        if self._name != "gemma3_text":
            if types is not None and set(_texts(types)) - {GLOBAL} and self._name != "mistral":
                rule = f"this decoder supports {GLOBAL} only"
                self._report("layer_types", types, rule, "use a model without it")
            return arch
        if types is None:
            every = self._content.get("sliding_window_pattern", 6)
            if type(every) is not int or every < 1:
                self._report("sliding_window_pattern", every, "must be a whole number, at least 1")
                return arch
            types = [LOCAL if (n + 1) % every else GLOBAL for n in range(arch.layers)]
        patterns = {
            every: [LOCAL if not every or (n + 1) % every else GLOBAL for n in range(arch.layers)]
            for every in (
                range(arch.layers + 1) if isinstance(types, list) and len(types) == arch.layers else ()
            )
        }
        every = next((every for every, pattern in patterns.items() if pattern == types), None)
        if every is None:
            rule = f"must be {arch.layers} times {LOCAL} or, in every n-th place, {GLOBAL}"
            self._report("layer_types", types, rule, "use a model with such layers")
            return arch
        if every == 1:  # none is local
            return replace(arch, window=0)
        if not arch.window:
            self._report("sliding_window", self._content.get("sliding_window"), f"is required by {LOCAL}")
        return replace(arch, global_every=every)

    def _with_rope(self, arch: Architecture) -> Architecture:
        """Add the rotary frequencies, from `rope_parameters` or the keys of transformers before 5.

        As in transformers, `rope_scaling` counts where a file has both.
        """
        gemma = self._name == "gemma3_text"
        where = "rope_scaling" if self._content.get("rope_scaling") else "rope_parameters"
        rope = self._content.get(where) or {}
        if not isinstance(rope, dict):
            self._report(where, rope, "must be an object of settings")
            return arch
        theta = self._content.get("rope_theta", 1_000_000.0 if gemma else 10_000.0)
        if gemma:
            nested = self._content.get("rope_parameters") or {}
            if not isinstance(nested, dict) or nested.keys() - {LOCAL, GLOBAL}:
                rule = f"must hold the settings of {LOCAL} and {GLOBAL}"
                self._report("rope_parameters", nested, rule)
                return arch
            local, wide = (nested.get(kind) or {} for kind in (LOCAL, GLOBAL))
            if not isinstance(local, dict) or not isinstance(wide, dict):
                self._report("rope_parameters", nested, "must be objects of settings")
                return arch
            if local.get("rope_type", "default") != "default":
                rule = 'this decoder supports "default" only'
                self._report(f"rope_parameters.{LOCAL}.rope_type", local["rope_type"], rule)
            base = local.get("rope_theta", self._content.get("rope_local_base_freq", 10_000.0))
            rope = wide | (rope if where == "rope_scaling" else {})
            where = where if where == "rope_scaling" else f"rope_parameters.{GLOBAL}"
            if arch.window:
                arch = replace(arch, local_rope_theta=self._theta("rope_local_base_freq", base))
        self._rope = where
        theta = self._theta(
            f"{where}.rope_theta" if "rope_theta" in rope else "rope_theta", rope.get("rope_theta", theta)
        )
        return replace(arch, rope_theta=theta, rope_scaling=self._scaling(rope, where))

    def _theta(self, path: str, value: Any) -> float:
        key = path.rpartition(".")[2]
        prefix = path.removesuffix(key)
        return float(self._parsed(Architecture, {key: "rope_theta"}, {key: value}, prefix).rope_theta)

    def _scaling(self, rope: dict[str, Any], where: str) -> RopeScaling:
        kind = rope.get("rope_type") or rope.get("type") or "default"
        if kind == "default":
            return RopeScaling()
        if not isinstance(kind, str) or kind not in KINDS:
            rule = f"must be one of default, {', '.join(KINDS)}"
            self._report(f"{where}.rope_type", kind, rule, "use a model with one of them")
            return RopeScaling()
        for key in sorted(rope.keys() - KINDS[kind]):
            unused = rope[key] is None and key != "truncate"
            if not unused and (key, rope[key]) not in (("partial_rotary_factor", 1.0), ("truncate", True)):
                self._report(f"{where}.{key}", rope[key], f"isn't supported for {kind}", "remove it")
        settings = {key: value for key, value in rope.items() if key in ROPE_KEYS and key in KINDS[kind]}
        for key in ("beta_fast", "beta_slow"):
            if settings.get(key, 0) is None:
                del settings[key]
        longest = self._content.get(_LONGEST, 8192)
        if kind == "linear":
            settings.pop("original_max_position_embeddings", None)
        elif own := self._content.get("original_max_position_embeddings"):
            settings["original_max_position_embeddings"] = own
        original = kind == "linear" or settings.setdefault("original_max_position_embeddings", longest)
        required = {"llama3": ("factor", "low_freq_factor", "high_freq_factor")}.get(kind, ("factor",))
        for key in required:
            if key not in settings:
                self._report(f"{where}.{key}", None, f"is required by {kind}")
        if kind == "yarn" and settings.get("factor", 0) is None and _numbers(longest, original):
            settings["factor"] = longest / original
        scaling: RopeScaling = self._parsed(RopeScaling, ROPE_KEYS, settings, f"{where}.")
        return replace(scaling, kind=kind)

    def _key(self, name: str) -> str:
        """Return the key of a field of `Architecture`, for messages."""
        keys = {field: key for key, field in (_KEYS | ROPE_KEYS).items()}
        leaf = name.removeprefix("rope_scaling.")
        return f"{self._rope}.{keys.get(leaf, leaf)}" if leaf != name else keys.get(name, name)

    def _report(
        self, path: str, value: Any, rule: str, fix: str = "get the file again, or correct it"
    ) -> None:
        self.problems.append(Problem(path, "null" if value is None else shown(value, texts=False), rule, fix))


def _texts(value: Any) -> list[str]:
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else [str(value)]


def _numbers(*values: Any) -> bool:
    return all(type(value) in (int, float) and value > 0 for value in values)
