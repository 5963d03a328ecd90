"""Storage layer: the checkpoint bucket, the hosts' account, and what the project must have enabled."""
