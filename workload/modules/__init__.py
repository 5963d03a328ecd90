"""Models of the user: modules of flax, trained as they are."""
