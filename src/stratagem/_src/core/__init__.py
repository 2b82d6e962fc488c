"""The base of all packages: errors, types, pytree utilities, dtypes, locks and thread state."""
