"""Texts and tokens of conversations by the chat templates of some tokenizers, as transformers makes them.

    PYTHON_WITH_TRANSFORMERS tests/parity/chats.py CASES.json OUT.json

CASES has `folders`, `conversations`, and `prompted`, all combined; OUT gets, in that order, `found`: text,
tokens and mask of the answers' tokens, or null where transformers refuses; and `at`, the time.
"""

import json
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import transformers


def main(cases: Path, out: Path) -> None:
    parsed = json.loads(cases.read_text())
    anies: list[Any] = []
    for folder in parsed["folders"]:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        for messages, prompted in product(parsed["conversations"], parsed["prompted"]):
            try:
                text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompted)
                known = tokenizer.apply_chat_template(
                    messages,
                    add_generation_prompt=prompted,
                    return_dict=True,
                    return_assistant_tokens_mask=True,
                )
            except Exception as error:  # as varied as what a template may do
                print(f"{folder}: {error}", file=sys.stderr)
                anies.append(None)
            else:
                anies.append([text, known["input_ids"], known["assistant_masks"]])
    out.write_text(json.dumps({"at": int(time.time()), "found": anies}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
