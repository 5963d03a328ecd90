"""Generation settings of a model: begin and end tokens, and the tokenizer.

    generation_config.json                  begin token and end tokens of a text
    tokenizer.json, tokenizer_config.json   tokenizer of the training text

A run stores `Generation` and the tokenizer's files when it begins; exports contain them.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CONFIG, TOKENIZER, SETTINGS = "generation_config.json", "tokenizer.json", "tokenizer_config.json"


@dataclass(frozen=True)
class Generation:
    """Generation settings.

    Attributes:
        begins: tokens before a text.
        ends: alternative end tokens, that of the training documents first.
        longest: text that the model supports, in tokens.
    """

    begins: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    longest: int = 0

    @classmethod
    def of_run(cls, begins: tuple[int, ...], end: int, length: int, known: "Generation") -> "Generation":
        """Return the settings of a run on such documents, cut to `length`; `known`: of its initial weights.

        Length and end tokens of the weights, such as those of a chat, remain valid; so does their begin token
        where documents have none of their own, as conversations, whose template writes it.
        """
        ends = tuple(dict.fromkeys([end, *known.ends]))
        return cls(begins or known.begins, ends, max(length, known.longest))

    @classmethod
    def of_weights(cls, weights: Path) -> "Generation":
        """Read the settings in a folder of Hugging Face weights; pass over what is of another kind."""
        ids: dict[str, list[int]] = {"bos_token_id": [], "eos_token_id": []}
        longest = 0
        for name in ("config.json", CONFIG):
            try:
                content = json.loads((weights / name).read_text())
            except (OSError, ValueError, RecursionError):
                continue
            if not isinstance(content, dict):
                continue
            for key, tokens in ids.items():
                known = content.get(key)
                tokens += [
                    token for token in (known if isinstance(known, list) else [known]) if type(token) is int
                ]
            length = content.get("max_position_embeddings")
            longest = max(longest, length) if type(length) is int else longest
        begins, ends = (tuple(dict.fromkeys(tokens)) for tokens in ids.values())
        return cls(begins, ends, longest)

    @classmethod
    def read(cls, content: Any) -> "Generation":
        """Parse `content`; earlier versions stored none, which gives empty settings."""
        known = content if isinstance(content, dict) else {}
        return cls(tuple(known.get("begins", ())), tuple(known.get("ends", ())), known.get("longest", 0))

    def content(self) -> dict[str, Any]:
        """Return the settings for JSON."""
        return asdict(self)

    def ids(self) -> dict[str, Any]:
        """Return the known token ids, as in config.json and generation_config.json."""
        ids: dict[str, Any] = {}
        if self.begins:
            ids["bos_token_id"] = self.begins[0]
        if self.ends:
            ids["eos_token_id"] = self.ends[0] if len(self.ends) == 1 else list(self.ends)
        return ids

    def write(self, folder: Path, tokenizer: dict[str, bytes]) -> None:
        """Write generation settings and tokenizer into an exported folder.

        Args:
            folder: of the weights.
            tokenizer: files by name; empty for bytes or an unknown tokenizer.

        Raises:
            OSError: the folder can't be written.
        """
        if self.ends:
            (folder / CONFIG).write_text(json.dumps(self.ids(), indent=2) + "\n")
        for name, content in tokenizer.items():
            (folder / name).write_bytes(content)
        if TOKENIZER in tokenizer and SETTINGS not in tokenizer:
            (folder / SETTINGS).write_text(json.dumps(self._settings(tokenizer[TOKENIZER]), indent=2) + "\n")

    def _settings(self, tokenizer: bytes) -> dict[str, Any]:
        """Return the minimal tokenizer_config.json that transformers needs."""
        added = {token["id"]: token["content"] for token in json.loads(tokenizer).get("added_tokens", [])}
        settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
        for name, tokens in (("bos_token", self.begins), ("eos_token", self.ends)):
            if tokens and tokens[0] in added:
                settings[name] = added[tokens[0]]
        return settings | ({"model_max_length": self.longest} if self.longest else {})
