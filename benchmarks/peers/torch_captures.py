"""Activations of a decoder at given layers, by torch: the seconds of a pass over documents, as JSON.

python torch_captures.py WEIGHTS DOCUMENTS.npz OUT.npz PEER ORDER DTYPE

PEER is transformers, transformer-lens or nnsight. Runs where torch and the peer are, not with our packages.
Each is used as its documentation shows: batches padded to their longest document, a mask, no gradients,
nothing computed after the last layer wanted. ORDER is `given`, as documentation has it, or `sorted` by
length, which pads least. OUT holds what was kept of the first document.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise

import numpy as np
import torch
from transformers import AutoModel, PreTrainedTokenizerFast

Capture = Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]
"""From ids and mask, B x L each, to the streams after the layers wanted, B x L x D each."""


def main() -> None:
    """Print the seconds, the tokens and the places for tokens, padding included."""
    folder, documents, out, peer, order, dtype = sys.argv[1:]
    given = np.load(documents)
    offsets, layers = given["offsets"], given["layers"].tolist()
    tokens = [given["tokens"][begin:end] for begin, end in pairwise(offsets)]
    batches = padded_batches([len(token) for token in tokens], int(given["batch_tokens"]), order)
    peers = {"transformers": hooks, "transformer-lens": lens, "nnsight": nnsight}
    with torch.inference_mode():
        capture = peers[peer](folder, layers, getattr(torch, dtype))
        run(capture, tokens, batches[:1])
        begun = time.perf_counter()
        stored = run(capture, tokens, batches)
        seconds = time.perf_counter() - begun
    first = {str(layer): value.float().numpy() for layer, value in zip(layers, stored[0], strict=True)}
    np.savez(out, **first)
    places = sum(len(batch) * max(len(tokens[n]) for n in batch) for batch in batches)
    versions = " ".join(f"{name}=={version(name)}" for name in dict.fromkeys((peer, "transformers", "torch")))
    mapping = {"seconds": seconds, "tokens": len(given["tokens"]), "places": places, "versions": versions}
    print(json.dumps(mapping))


def padded_batches(lengths: list[int], batch_tokens: int, order: str) -> list[list[int]]:
    """At most so many places in a batch, padding included; sorted, the longest documents come first."""
    batches: list[list[int]] = [[]]
    numbers = range(len(lengths))
    for n in sorted(numbers, key=lambda n: -lengths[n]) if order == "sorted" else numbers:
        longest = max(lengths[item] for item in [*batches[-1], n])
        if batches[-1] and (len(batches[-1]) + 1) * longest > batch_tokens:
            batches.append([])
        batches[-1].append(n)
    return batches


def run(
    capture: Capture, tokens: list[np.ndarray], batches: list[list[int]]
) -> dict[int, list[torch.Tensor]]:
    """By document, what was kept of its own tokens at each layer: L x D."""
    stored = {}
    for batch in batches:
        longest = max(len(tokens[n]) for n in batch)
        ids = torch.zeros((len(batch), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, n in enumerate(batch):
            ids[row, : len(tokens[n])] = torch.from_numpy(tokens[n])
            mask[row, : len(tokens[n])] = 1
        values = capture(ids, mask)
        for row, n in enumerate(batch):
            stored[n] = [value[row, : len(tokens[n])].clone() for value in values]
    return stored


def hooks(folder: str, layers: list[int], dtype: torch.dtype) -> Capture:
    """Add a hook to each layer of a transformers model and remove the layers after the last one."""
    model = AutoModel.from_pretrained(folder, dtype=dtype, use_cache=False)
    model.layers = model.layers[: max(layers) + 1]
    observed: dict[int, torch.Tensor] = {}
    for n in layers:
        model.layers[n].register_forward_hook(
            lambda _, __, output, n=n: observed.__setitem__(
                n, output[0] if isinstance(output, tuple) else output
            )
        )

    def capture(ids: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        model(input_ids=ids, attention_mask=mask)
        return [observed[n] for n in layers]

    return capture


def lens(folder: str, layers: list[int], dtype: torch.dtype) -> Capture:
    """TransformerLens with a cache of the points wanted, told where to stop; its attention is eager."""
    from tokenizers import Tokenizer, models
    from transformer_lens.model_bridge import TransformerBridge

    words = Tokenizer(models.WordLevel({"<end>": 0}, unk_token="<end>"))  # it asks for one; none is used
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>")
    model = TransformerBridge.boot_transformers(folder, device="cpu", dtype=dtype, tokenizer=tokenizer)
    names = [f"blocks.{n}.hook_out" for n in layers]

    def capture(ids: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        _, cache = model.run_with_cache(
            ids, attention_mask=mask, names_filter=names, stop_at_layer=max(layers) + 1, return_type=None
        )
        return [cache[name] for name in names]

    return capture


def nnsight(folder: str, layers: list[int], dtype: torch.dtype) -> Capture:
    """nnsight around transformers' model; the trace ends after the last layer wanted."""
    from nnsight import NNsight

    model = NNsight(AutoModel.from_pretrained(folder, dtype=dtype, use_cache=False))

    def capture(ids: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        with model.trace(input_ids=ids, attention_mask=mask) as tracer:
            observed = [].save()
            for n in layers:
                observed.append(model.layers[n].output)
            tracer.stop()
        return [value[0] if isinstance(value, tuple) else value for value in observed]

    return capture


if __name__ == "__main__":
    main()
