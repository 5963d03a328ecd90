"""Scenarios: the files, the runner that acts them out in a world, and the report."""
