"""The program of all four projects: Pulumi runs it, and it runs the layer whose project this is."""

from infra.program import run

run()
