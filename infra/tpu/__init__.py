"""TPU layer: the slices, and what a host does when it boots."""
