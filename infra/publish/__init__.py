"""Builds what hosts install, once per lock, and puts it into the bucket by content.

`tpu publish ENV`. The bundle's format is in
docs/internals/architecture.md; a host checks every hash before it installs anything.
"""
