"""Training of a decoder on token files, on all workers of a slice; its checkpoints and record."""
