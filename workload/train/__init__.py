"""Training: a decoder on token files, on all workers of a slice."""
