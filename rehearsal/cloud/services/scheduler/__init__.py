"""Emulated Cloud Scheduler."""
