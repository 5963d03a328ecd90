"""The program of all projects: Pulumi runs it, and it runs the layer whose project this is."""

from infra.engine.program import run

run()
