"""The builds layer."""
