"""What to write here for names of TensorFlow that Stratagem does not have.

Loaded when such a name is asked for, which is an error, so that nothing else pays for it.
"""

from stratagem._src.core.tensorflow_names.arrays import ARRAYS
from stratagem._src.core.tensorflow_names.mathematics import MATHEMATICS
from stratagem._src.core.tensorflow_names.networks import NETWORKS
from stratagem._src.core.tensorflow_names.programs import PROGRAMS
from stratagem._src.core.tensorflow_names.random_numbers import RANDOM_NUMBERS

__all__ = ["TRANSLATIONS"]

TRANSLATIONS: dict[str, str] = ARRAYS | MATHEMATICS | RANDOM_NUMBERS | NETWORKS | PROGRAMS
"""For each name below ``tf.`` what takes its place; ``sg`` stands for ``stratagem``."""
