"""Settings as frozen dataclasses with rules beside their fields; all problems of a file at once."""
