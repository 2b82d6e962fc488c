"""Keras 3 on JAX: its variables under a scope, in replicas and in compiled functions."""
