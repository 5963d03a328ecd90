"""Tests of the boot of Slurm machines."""
