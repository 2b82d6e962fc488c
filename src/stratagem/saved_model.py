"""``tf.saved_model``: exports functions with their weights, and loads them."""

from typing import TYPE_CHECKING

from stratagem._src.core.io_options import LoadOptions, SaveOptions
from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.export.loading import load
from stratagem._src.export.saving import save

__all__ = ["LoadOptions", "SaveOptions", "load", "save"]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
