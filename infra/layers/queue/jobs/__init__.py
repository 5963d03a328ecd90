"""Jobs on the cluster of the queue layer: from a user's words to a JobSet, and how it fares."""
