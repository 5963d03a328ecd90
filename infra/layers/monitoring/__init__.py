"""The monitoring layer."""
