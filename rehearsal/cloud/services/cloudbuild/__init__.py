"""Emulated Cloud Build."""
