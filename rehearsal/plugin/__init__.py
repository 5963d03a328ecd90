"""Pulumi's plugin protocol for a provider written in Python: gRPC, values, errors; nothing of any cloud.

`rehearsal.standin` is such a provider, for Google Cloud; `rehearsal.kubernetes.standin`, for Kubernetes.
"""
