"""The JAX profile of one process, and the merged timeline of all processes."""
