"""Slices as users declare them: settings, rules, nodes, sizes, names, prices."""
