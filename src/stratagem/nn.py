"""Names that TensorFlow keeps under ``tf.nn``: losses that add up over the replicas."""

from stratagem._src.training.losses import compute_average_loss, scale_regularization_loss

__all__ = ["compute_average_loss", "scale_regularization_loss"]
