"""Measurements, a command each: results/NAME.json holds the figures, docs/internals/benchmarks.md shows them.

See `python -m benchmarks --help`.
"""
