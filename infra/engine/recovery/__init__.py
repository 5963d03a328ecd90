"""Recovery of stacks after an interrupted `pulumi`."""
