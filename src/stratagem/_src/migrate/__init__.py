"""``stratagem migrate``: rewrites programs for TensorFlow as programs for JAX and Stratagem."""
