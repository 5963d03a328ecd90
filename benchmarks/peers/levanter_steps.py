"""Levanter's Llama with optax: seconds of each step, as JSON. Runs where Levanter is, not with our packages.

python levanter_steps.py small.json
"""

import json
import sys
import time
from pathlib import Path

import equinox as eqx
import haliax as hax
import jax
import levanter
import numpy as np
import optax
from levanter.models.llama import LlamaConfig
from levanter.models.lm_model import LmExample


def main() -> None:
    """Print the seconds of every step, the parameters and the version."""
    sizes = json.loads(Path(sys.argv[1]).read_text())
    model, batch, length = sizes["model"], sizes["batch_size"], sizes["sequence_length"]
    config = LlamaConfig(
        max_seq_len=length,
        hidden_dim=model["d_model"],
        intermediate_dim=model["d_ff"],
        num_layers=model["layers"],
        num_heads=model["heads"],
        num_kv_heads=model["kv_heads"],
        gradient_checkpointing=False,
        tie_word_embeddings=False,
    )
    Vocab, Batch = hax.Axis("vocab", model["vocab_size"]), hax.Axis("batch", batch)
    llama = config.build(Vocab, key=jax.random.PRNGKey(0))
    params = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(llama, eqx.is_array)))
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(1e-3, b1=0.9, b2=0.95, weight_decay=0.1)
    )
    opt_state = optimizer.init(eqx.filter(llama, eqx.is_inexact_array))

    @eqx.filter_jit(donate="all-except-first")
    def step(tokens, llama, opt_state):
        def loss(llama):
            examples = hax.vmap(LmExample.causal, Batch)(tokens)
            return hax.mean(llama.compute_next_token_loss(examples)).scalar()

        value, gradients = eqx.filter_value_and_grad(loss)(llama)
        updates, opt_state = optimizer.update(gradients, opt_state, eqx.filter(llama, eqx.is_inexact_array))
        return value, eqx.apply_updates(llama, updates), opt_state

    seconds = []
    for number in range(sizes["steps"]):
        drawn = np.random.default_rng(number).integers(0, 256, (batch, length), dtype=np.int32)
        begun = time.perf_counter()
        value, llama, opt_state = step(hax.named(drawn, (Batch, config.max_Pos)), llama, opt_state)
        float(value)
        seconds.append(time.perf_counter() - begun)
    version = getattr(levanter, "__version__", "")
    print(json.dumps({"seconds": seconds, "params": int(params), "version": version}))


if __name__ == "__main__":
    main()
