"""Token files: how they are made, read and put in order."""
