"""What the hosts of a slice install and run."""
