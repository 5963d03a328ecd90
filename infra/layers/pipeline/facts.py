"""Facts about serverless Spark as typed values: `facts.toml`."""

from dataclasses import dataclass
from datetime import date

from infra.core import facts


@dataclass(frozen=True)
class Runtime:
    """A version of the service's runtime; `why`: what keeps it from running our job, if anything."""

    name: str
    ends: date
    why: str = ""
    spark: str = ""
    java: int = 0
    python: str = ""


_FACTS = facts.of("infra.layers.pipeline")
RUNTIMES = {
    name: Runtime(name, **known) for name, known in _FACTS["runtimes"].items() if isinstance(known, dict)
}
RUNTIMES_READ: str = _FACTS["runtimes"]["read"]
FUNCTION_RUNTIMES: dict[str, date] = {
    name: ends for name, ends in _FACTS["functions"].items() if isinstance(ends, date)
}
"""The day on which a function's Python is deprecated, by the name of the runtime."""
_LIMITS = _FACTS["limits"]
CORES: tuple[int, ...] = tuple(_LIMITS["cores"])
LEAST_MIB_PER_CORE, MOST_MIB_PER_CORE = _LIMITS["mib_per_core"]
LEAST_DISK_GIB: int = _LIMITS["disk_gib"]
MOST_EXECUTORS: int = _LIMITS["most_executors"]
LEAST_TTL_MINUTES, MOST_TTL_MINUTES = _LIMITS["ttl_minutes"]
