"""TensorFlow's functions and gradient tape on JAX, with TensorFlow's signatures, dtypes and defaults."""
