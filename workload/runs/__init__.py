"""A run in storage: its objects, checkpoints, record, step log and goodput, and the lease on it."""
