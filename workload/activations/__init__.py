"""Shards of an extraction: reading, batches, statistics. Needs no JAX."""
