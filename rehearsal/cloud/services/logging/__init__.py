"""Emulated Cloud Logging."""
