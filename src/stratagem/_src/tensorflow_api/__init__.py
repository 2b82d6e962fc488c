"""TensorFlow's functions of arrays, with its signatures, dtypes and defaults, on JAX; its gradient tape."""
