"""Whether a run fits a slice, how fast it should be, what it will cost: said before it is rented."""
