"""An emulated Google Cloud with machines that really boot, on one Linux machine."""
