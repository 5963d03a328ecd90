"""A host's work before and beside its job; the standard library alone.

`python -m workload.host barrier` lets the workers of a slice wait for one another,
`python -m workload.host unit` turns a slice's `run` into a systemd unit. The boot script
calls both, so no module here may import a package that the workload's lock names.
"""
