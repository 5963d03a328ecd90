"""Declaration language of layers: outputs, upstream reads, providers, names, the destroy guard."""
