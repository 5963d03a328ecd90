"""Network layer: a network with large packets, one subnet per region, and who may reach a host."""
