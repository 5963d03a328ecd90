"""A program of one's own: all chips of all slices add up a number."""

import os

import jax
from jax.experimental import multihost_utils

if int(os.environ["WORKER_COUNT"]) > 1:
    jax.distributed.initialize(
        os.environ["COORDINATOR_ADDRESS"],
        num_processes=int(os.environ["WORKER_COUNT"]),
        process_id=int(os.environ["WORKER_ID"]),
        cluster_detection_method="deactivate",  # the launcher's numbers, not JAX's own guess
    )
total = multihost_utils.process_allgather(jax.numpy.array([jax.local_device_count()])).sum()
print(f"worker {jax.process_index()} of {jax.process_count()}: {total} chips in all", flush=True)
