"""transformers' Llama on torch: seconds of each step, as JSON. Runs where torch is, not with our packages.

python torch_steps.py small.json eager|compile
"""

import json
import sys
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    """Print the seconds of every step, the parameters and the version."""
    sizes = json.loads(Path(sys.argv[1]).read_text())
    model, batch, length = sizes["model"], sizes["batch_size"], sizes["sequence_length"]
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=model["d_model"],
        intermediate_size=model["d_ff"],
        num_hidden_layers=model["layers"],
        num_attention_heads=model["heads"],
        num_key_value_heads=model["kv_heads"],
        vocab_size=model["vocab_size"],
        max_position_embeddings=length,
        tie_word_embeddings=False,
        use_cache=False,
    )
    llama = LlamaForCausalLM(config)
    params = sum(p.numel() for p in llama.parameters())
    optimizer = torch.optim.AdamW(
        llama.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    forward = torch.compile(llama) if sys.argv[2] == "compile" else llama
    seconds = []
    for _ in range(sizes["steps"]):
        tokens = torch.randint(0, 256, (batch, length + 1))
        inputs, targets = tokens[:, :-1], tokens[:, 1:].contiguous()
        begun = time.perf_counter()
        # As ours: L inputs, each with a target; transformers would shift within L.
        loss = forward(input_ids=inputs, shift_labels=targets, labels=targets).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(llama.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        seconds.append(time.perf_counter() - begun)
    print(json.dumps({"seconds": seconds, "params": params, "version": torch.__version__}))


if __name__ == "__main__":
    main()
