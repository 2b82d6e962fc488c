"""Keras 3 on JAX under strategies: variables, layers, optimizers, metrics and the trainer."""
