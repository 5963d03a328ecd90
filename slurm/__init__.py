"""A Slurm cluster of v6e slices: roles of its machines, the daemon that keeps slices, and commands.

Slurm decides which hosts it needs; fleet creates and deletes slices. `decide` is what follows for each slice,
`keep` does it, `boot` makes a machine the controller or a login node, `request` is what slurmctld calls.
"""
