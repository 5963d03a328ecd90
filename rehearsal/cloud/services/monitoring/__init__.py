"""Emulated Cloud Monitoring."""
