"""Slurm layer: a controller, a login node, and partitions of v6e slices that the fleet keeps."""
