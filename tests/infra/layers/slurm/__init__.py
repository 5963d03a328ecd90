"""Tests of the Slurm layer."""
