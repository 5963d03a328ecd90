"""The network layer."""
