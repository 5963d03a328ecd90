"""The admission rules' expressions, as `make prove` has tried them on an API server.

After a change that tests/rehearsal/kubernetes accepts, record them again:
python -m tests.infra.layers.queue.test_admission_texts
"""

import json
import re
from pathlib import Path
from typing import Any

from infra.layers.queue import admission
from infra.layers.queue.kueue import Team

RECORDED = Path(__file__).with_name("admission.json")
POOLS = [
    {"name": "small", "topology": "4x4", "hosts": 4, "chips": 16, "chipsPerHost": 4},
    {"name": "big", "topology": "16x16", "hosts": 64, "chips": 256, "chipsPerHost": 4},
]
TEAMS = [Team("vision", "vision"), Team("speech", "speech-jobs")]
CLUSTER = "projects/my-project/locations/us-east5/clusters/tpu"
LITERAL = re.compile(r"'(?:[^'\\]|\\.)*'")


def rules() -> Any:
    """Return the objects with and without pools; texts for people are left out."""
    text = json.dumps([list(admission.objects(pools, TEAMS, CLUSTER)) for pools in (POOLS, [])])
    return json.loads(text, object_hook=_without_messages)


def _without_messages(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: LITERAL.sub(lambda literal: "'…'" if " " in literal[0] else literal[0], value)
        if name == "expression"
        else value
        for name, value in fields.items()
        if name != "message"
    }


def test_rules_are_those_that_an_api_server_was_tried_with() -> None:
    assert rules() == json.loads(RECORDED.read_text())


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(rules(), indent=1, sort_keys=True, ensure_ascii=False) + "\n")
