"""The only package that uses private names of JAX, each with a test and a fallback."""
