"""What an extraction leaves: shards, how they are read, their statistics. Needs no JAX."""
