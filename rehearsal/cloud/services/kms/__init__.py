"""Emulated Cloud KMS."""
