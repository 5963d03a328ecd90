"""Plan of a run: settings, inputs and the run's id."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from workload.data.tokenizers import Tokenizer
from workload.preprocess import VERSION
from workload.preprocess.config import Config
from workload.preprocess.inputs import Input, Piece


@dataclass(frozen=True)
class Plan:
    """Work of a run, and its id."""

    config: Config
    tokenizer: Tokenizer
    script: bytes
    inputs: list[Input]
    pieces: list[Piece]
    links: dict[str, str]

    @property
    def run(self) -> str:
        """First 16 digits of the SHA-256 of `decides`."""
        return hashlib.sha256(json.dumps(self.decides(), sort_keys=True).encode()).hexdigest()[:16]

    def decides(self) -> dict[str, Any]:
        """Return all that determines the output's bytes, for JSON."""
        tokenizer = self.tokenizer
        inputs = [[item.name, item.size_bytes, item.version] for item in self.inputs]
        return {
            "preprocess_version": VERSION,
            "settings": self.config.decides(),
            "tokenized_by": [
                tokenizer.identity,
                list(tokenizer.begin_of_document),
                tokenizer.end_of_document,
            ],
            "script_sha256": hashlib.sha256(self.script).hexdigest() if self.script else "",
            "inputs_sha256": hashlib.sha256(json.dumps(inputs).encode()).hexdigest(),
            "links": self.links,
        }
