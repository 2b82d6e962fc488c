"""Replacements for names of TensorFlow that Stratagem does not have.

Loaded only when such a name is accessed, which is an error, so that other programs do not pay for it.
"""

from stratagem._src.core.tensorflow_names.numeric import NUMERIC
from stratagem._src.core.tensorflow_names.programs import PROGRAMS

__all__ = ["TRANSLATIONS"]

TRANSLATIONS: dict[str, str] = NUMERIC | PROGRAMS
"""The replacement of each name below ``tf.``; ``sg`` stands for ``stratagem``."""
