"""Keras 3 with the JAX backend: ``stratagem.keras is keras``."""

import sys
from typing import TYPE_CHECKING

from stratagem._src.integrations.keras.loader import load_keras

if TYPE_CHECKING:
    from keras import *  # noqa: F403

sys.modules[__name__] = load_keras()
