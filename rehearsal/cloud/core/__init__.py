"""Parts that all emulated services build on: errors, service, world, clock, operations."""
