"""Kubernetes control planes of emulated clusters."""
