"""Pulumi's plugin protocol for a provider written in Python: gRPC, values, errors; nothing of any cloud.

`providers/gcp` is such a provider, for Google Cloud; `providers/kubernetes`, for Kubernetes.
"""
