"""Keras 3 with the JAX backend: ``stratagem.keras is keras``."""

import sys
from typing import TYPE_CHECKING

from stratagem._src.integrations.keras.loader import load_keras
from stratagem._src.integrations.keras.module_names import give_modules_a_second_name

if TYPE_CHECKING:
    from keras import *  # noqa: F403

give_modules_a_second_name(__name__, "keras")
sys.modules[__name__] = load_keras()
