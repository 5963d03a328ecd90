"""Checks of an environment before and while it runs: a line for each."""
