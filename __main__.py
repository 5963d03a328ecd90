"""The program of all projects: Pulumi runs it, and it runs the layer whose project this is."""

from infra.program import run

run()
