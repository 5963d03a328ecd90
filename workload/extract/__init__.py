"""Runs a model over a stream of documents and keeps what it computes at named points.

stream.py and prepare.py hold the documents, packing.py and ranges.py cut the work into ranges that are
the same whoever does them, forward.py computes, shard.py is what a range becomes, run.py ties them.
"""
