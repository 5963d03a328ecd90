"""Price rows, rates, run prices and tables. Imports no layer."""
