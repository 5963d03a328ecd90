"""A run in storage: its objects, location, lease, step log, goodput and curves."""
