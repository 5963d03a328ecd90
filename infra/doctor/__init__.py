"""What would keep an environment from working, said before or while it does: a line for each thing asked."""
