"""What the hosts of a slice install and run."""

__version__ = "0.1.0"
