"""Keras 3 itself, with the JAX backend chosen: ``stratagem.keras is keras``."""

import sys
from typing import TYPE_CHECKING

from stratagem._src.integrations.keras.door import load_keras

if TYPE_CHECKING:
    from keras import *  # noqa: F403

sys.modules[__name__] = load_keras()
