"""Keras under a strategy."""
