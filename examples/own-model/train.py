"""Train a Flax model of your own on every chip of a slice, with Orbax checkpoints in the bucket.

The program imports nothing of this project. After a preemption each worker starts it again, and it resumes
from the newest checkpoint.
"""

import os

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

STEPS = int(os.environ.get("STEPS", "200"))
SAVE_EVERY = 20
BATCH, LENGTH, VOCABULARY = 256, 32, 64


class Model(nnx.Module):
    """Logits of the next token, from the last tokens' embeddings."""

    def __init__(self, width: int, *, rngs: nnx.Rngs):
        self.embed = nnx.Embed(VOCABULARY, width, rngs=rngs)
        self.mix = nnx.GRUCell(width, width, rngs=rngs)
        self.head = nnx.Linear(width, VOCABULARY, rngs=rngs)

    def __call__(self, tokens_BxL: jax.Array) -> jax.Array:
        """Return logits (B, L, V) of tokens (B, L)."""
        x_LxBxD = self.embed(tokens_BxL).swapaxes(0, 1)
        first_BxD = jnp.zeros_like(x_LxBxD[0])
        _, y_LxBxD = jax.lax.scan(self.mix, first_BxD, x_LxBxD)
        return self.head(y_LxBxD.swapaxes(0, 1))


def batch(step: jax.Array) -> jax.Array:
    """Return a step's batch (B, L+1): counting, from a random start by a random stride."""
    start, stride = jax.random.randint(jax.random.key(step), (2, BATCH, 1), 0, VOCABULARY)
    return (start + stride * jnp.arange(LENGTH + 1)) % VOCABULARY


@nnx.jit
def train_step(model: Model, optimizer: nnx.Optimizer, tokens_BxL: jax.Array) -> jax.Array:
    """Update model and optimizer in place, and return the mean loss of the tokens (B, L+1)."""

    def loss_of(model: Model) -> jax.Array:
        logits_BxLxV = model(tokens_BxL[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits_BxLxV, tokens_BxL[:, 1:]).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


def main() -> None:
    """Train to the last step, from the newest checkpoint if there is one."""
    if int(os.environ.get("WORKER_COUNT", "1")) > 1:
        jax.distributed.initialize(
            os.environ["COORDINATOR_ADDRESS"],
            num_processes=int(os.environ["WORKER_COUNT"]),
            process_id=int(os.environ["WORKER_ID"]),
            cluster_detection_method="deactivate",  # the variables are right; JAX needn't guess
        )
    mesh = Mesh(jax.devices(), "data")
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))

    @nnx.jit(out_shardings=everywhere)
    def create() -> tuple[Model, nnx.Optimizer]:
        model = Model(128, rngs=nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adamw(3e-3), wrt=nnx.Param)

    model, optimizer = create()
    make_batch = jax.jit(batch, out_shardings=split)  # each device draws its own rows

    options = ocp.CheckpointManagerOptions(save_interval_steps=SAVE_EVERY, max_to_keep=2)
    with ocp.CheckpointManager(f"{os.environ['CHECKPOINT_URL']}/own-model", options=options) as manager:
        first = 0
        if (latest := manager.latest_step()) is not None:
            target = ocp.args.StandardRestore(nnx.state((model, optimizer)))
            nnx.update((model, optimizer), manager.restore(latest, args=target))
            first = latest
        print(f"{jax.device_count()} devices, from step {first}", flush=True)
        for step in range(first, STEPS):
            loss = train_step(model, optimizer, make_batch(step))
            manager.save(step + 1, args=ocp.args.StandardSave(nnx.state((model, optimizer))))
            if (step + 1) % SAVE_EVERY == 0:
                print(f"step {step + 1} of {STEPS}: loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    main()
