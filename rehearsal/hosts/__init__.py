"""Machines that boot: their image, network, disks and power."""
