"""Records of runs, `pipeline/RUN/run.json` in the checkpoint bucket, where hosts and pods may write, too."""

from typing import Any

from settings_schema import foreign
from settings_schema.foreign import ForeignError

RUN = "r[0-9]{1,20}"
_TIME = "[0-9TZ:.+-]{1,40}"
# Patterns of what is required: requests and command lines contain it.
_REQUIRED = {
    "run": RUN, "outcome": "[a-z_]{1,40}", "stage": "[a-z_]{1,40}", "began": _TIME,
    "execution": "[A-Za-z0-9-]{1,80}", "raw": "gs://(?s:.*)",
}  # fmt: skip
_OPTIONAL = {
    "ended": _TIME, "batch": "[a-z0-9-]{1,80}", "why": "", "next": "", "training": "", "ended_by": "",
    "code": "",
}  # fmt: skip
_COUNTS = ("retry", "restart", "objects", "bytes")
_NUMBERS = ("predicted_usd", "spark_usd", "training_usd", "actual_usd", "most_usd")


def parse(run: str, content: bytes) -> dict[str, Any]:
    """Return the record of a run, its known keys with their types. Raises ForeignError."""
    parsed = foreign.parse(content)
    known: dict[str, Any] = {
        key: foreign.text(parsed, key, pattern) for key, pattern in (_REQUIRED | _OPTIONAL).items()
    }
    if missing := [key for key in _REQUIRED if not known[key]]:
        raise ForeignError(f"lacks {', '.join(missing)}")
    if known["run"] != run:
        raise ForeignError(f"is of {known['run']}")
    known |= {key: foreign.count(parsed, key) for key in _COUNTS}
    known |= {key: foreign.number(parsed, key) for key in _NUMBERS}
    if tokens := foreign.group(parsed, "tokens"):
        known["tokens"] = {key: foreign.count(tokens, key) for key in ("shards", "tokens")}
        known["tokens"] |= {key: foreign.text(tokens, key) for key in ("manifest", "inputs")}
    return parsed | {key: value for key, value in known.items() if parsed.get(key) is not None}
