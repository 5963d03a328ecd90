"""Publishing, against a storage server on loopback."""
