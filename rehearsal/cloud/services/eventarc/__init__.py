"""Emulated Eventarc."""
