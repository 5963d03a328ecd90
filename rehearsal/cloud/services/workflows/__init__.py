"""Emulated Workflows."""
