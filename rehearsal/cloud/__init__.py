"""The emulated APIs: one front door, one service per Google API, IAM, clock and faults."""
