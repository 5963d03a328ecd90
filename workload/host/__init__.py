"""What a host needs to know and do before the trainer starts; the standard library alone.

`python -m workload.host barrier` lets the workers of a slice wait for one another,
`python -m workload.host unit` turns a slice's `run` into a systemd unit. The boot script
calls both, so nothing here may import a package that the workload's lock names.
"""
