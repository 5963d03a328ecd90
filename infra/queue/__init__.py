"""Queues on the cluster: what Kueue gets of the node pools and the teams, and the jobs that it admits.

No layer yet: its objects are rendered, and tried on a real Kueue and JobSet (tests/kubernetes).
"""
