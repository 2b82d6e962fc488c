"""``tf.autograph.experimental``: options of TensorFlow's source rewriting."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.tensorflow_api.autograph import do_not_convert, set_loop_options

__all__ = ["do_not_convert", "set_loop_options"]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
