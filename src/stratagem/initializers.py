"""``tf.initializers``: ``keras.initializers`` of Keras 3, with the JAX backend."""

import sys
from typing import TYPE_CHECKING

from stratagem._src.integrations.keras.loader import load_keras

if TYPE_CHECKING:
    from keras.initializers import *  # noqa: F403

sys.modules[__name__] = load_keras().initializers
