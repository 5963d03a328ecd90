"""Keeps many slices in many zones working: what is wanted, what is seen, one decision each.

Stands on `infra` (settings, names, prices, the Pulumi program's stack); nothing imports this package.
"""
