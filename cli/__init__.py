"""The `tpu` command: one way in to the stacks, the fleet, the workload and the rehearsal."""
