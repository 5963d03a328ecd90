"""Emulated Cloud Functions and Cloud Run."""
