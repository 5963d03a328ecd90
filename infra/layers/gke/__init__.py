"""The gke layer."""
