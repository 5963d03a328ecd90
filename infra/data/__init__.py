"""Data layer: the training data as read-only disks, one per zone in use."""
