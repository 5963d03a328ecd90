"""Programs over all layers: registry, settings, prices, plan, update, recovery."""
