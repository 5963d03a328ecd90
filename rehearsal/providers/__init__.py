"""Stand-ins for the official provider plug-ins."""
