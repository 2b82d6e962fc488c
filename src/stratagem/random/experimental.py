"""``tf.random.experimental``: older names of generators and seeds, and stateless shuffling."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.tensorflow_api.random_generator import (
    Algorithm,
    Generator,
    create_rng_state,
    get_global_generator,
    set_global_generator,
)
from stratagem._src.tensorflow_api.random_seeds import fold_in as stateless_fold_in
from stratagem._src.tensorflow_api.random_seeds import split as stateless_split
from stratagem._src.tensorflow_api.random_stateless import stateless_shuffle

__all__ = [
    "Algorithm",
    "Generator",
    "create_rng_state",
    "get_global_generator",
    "set_global_generator",
    "stateless_fold_in",
    "stateless_shuffle",
    "stateless_split",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
