"""A small stand-in for the official kubernetes provider plugin, which no package registry ships.

Its requests go to a real API server; what it does when is by the official provider's published source,
https://github.com/pulumi/pulumi-kubernetes at 9497796 (provider/pkg).
docs/internals/standin.md lists the differences.
"""
