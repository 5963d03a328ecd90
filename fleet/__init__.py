"""Keep slices in several zones working: observe the nodes, decide on each member, act.

Uses `infra` (settings, names, prices, the Pulumi program's stack); only `cli` imports this package.
"""
