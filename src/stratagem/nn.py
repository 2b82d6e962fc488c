"""Names that TensorFlow keeps under ``tf.nn``: losses that add up over the replicas."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.training.losses import compute_average_loss, scale_regularization_loss

__all__ = ["compute_average_loss", "scale_regularization_loss"]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
