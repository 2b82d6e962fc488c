"""Distributed training on JAX with the tf.distribute programming model."""
