"""The only room for private names of JAX, each with a test and a way to do without."""
