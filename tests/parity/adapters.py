"""Logits of an exported adapter, loaded by PEFT beside its model, and of the merged export.

    PYTHON_WITH_TORCH tests/parity/adapters.py BASE ADAPTERS MERGED OUT

OUT is an .npz: `tokens`, and logits of `base`, `adapted` and `merged`.
"""

import sys

import numpy as np
import peft
import torch
import transformers


def main(base: str, adapters: str, merged: str, out: str) -> None:
    def load(folder: str) -> transformers.PreTrainedModel:
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    tokens = torch.randint(
        0, load(base).config.vocab_size, (2, 12), generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        logits = {"base": load(base)(tokens).logits, "merged": load(merged)(tokens).logits}
        logits["adapted"] = peft.PeftModel.from_pretrained(load(base), adapters)(tokens).logits
    np.savez(out, tokens=tokens.numpy(), **{name: value.numpy() for name, value in logits.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
