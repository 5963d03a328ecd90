"""Extraction: a model over a stream of documents, keeping its tensors at named points.

packing.py and ranges.py cut the stream into ranges, the same on every start; forward.py computes,
a range becomes one of `activations`' shards, and run.py ties them together.
"""
