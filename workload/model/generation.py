"""What generating with a model takes beside its weights: where a text begins and ends, and its tokenizer.

    generation_config.json   which token begins a text, which ones end it
    tokenizer.json           and tokenizer_config.json: of the text that the model was trained on

A run writes down `Generation` and keeps the tokenizer's files when it begins; an export is made of those.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CONFIG, TOKENIZER, SETTINGS = "generation_config.json", "tokenizer.json", "tokenizer_config.json"


@dataclass(frozen=True)
class Generation:
    """How a model is generated with.

    Attributes:
        begins: the tokens before a text.
        ends: any of them ends it, the one of the training's documents first.
        longest: text that the model is meant for, in tokens.
    """

    begins: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    longest: int = 0

    @classmethod
    def of_run(cls, begins: tuple[int, ...], end: int, length: int, weights: Path | None) -> "Generation":
        """Of a run on documents that begin and end so, cut to `length`, begun with these weights, if any.

        What the weights were meant for holds on: their length, and the ends that a chat has.
        """
        ends, longest = [end], length
        for name in ("config.json", CONFIG) if weights else ():
            try:
                content = json.loads((Path(weights or "") / name).read_text())
            except (OSError, ValueError):
                continue
            known = content.get("eos_token_id")
            ends += [one for one in (known if isinstance(known, list) else [known]) if isinstance(one, int)]
            longest = max(longest, int(content.get("max_position_embeddings") or 0))
        return cls(begins, tuple(dict.fromkeys(ends)), longest)

    @classmethod
    def read(cls, content: Any) -> "Generation":
        """From what `content` wrote; one that knows nothing where an earlier version wrote none."""
        known = content if isinstance(content, dict) else {}
        return cls(tuple(known.get("begins", ())), tuple(known.get("ends", ())), known.get("longest", 0))

    def content(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def ids(self) -> dict[str, Any]:
        """As config.json and generation_config.json have them; nothing that isn't known."""
        found: dict[str, Any] = {}
        if self.begins:
            found["bos_token_id"] = self.begins[0]
        if self.ends:
            found["eos_token_id"] = self.ends[0] if len(self.ends) == 1 else list(self.ends)
        return found

    def write(self, folder: Path, tokenizer: dict[str, bytes]) -> None:
        """Puts what there is to know into an exported folder.

        Args:
            folder: of the weights.
            tokenizer: files by their names; empty where the tokens are bytes or nobody kept them.

        Raises:
            OSError: it can't be written.
        """
        if self.ends:
            (folder / CONFIG).write_text(json.dumps(self.ids(), indent=2) + "\n")
        for name, content in tokenizer.items():
            (folder / name).write_bytes(content)
        if TOKENIZER in tokenizer and SETTINGS not in tokenizer:
            (folder / SETTINGS).write_text(json.dumps(self._settings(tokenizer[TOKENIZER]), indent=2) + "\n")

    def _settings(self, tokenizer: bytes) -> dict[str, Any]:
        """The least that transformers has to be told of a tokenizer.json."""
        added = {token["id"]: token["content"] for token in json.loads(tokenizer).get("added_tokens", [])}
        settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
        for name, tokens in (("bos_token", self.begins), ("eos_token", self.ends)):
            if tokens and tokens[0] in added:
                settings[name] = added[tokens[0]]
        return settings | ({"model_max_length": self.longest} if self.longest else {})
