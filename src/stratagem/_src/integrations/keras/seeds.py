"""Random numbers of Keras in replicas: another stream in each, the same in each run."""

from __future__ import annotations

import functools
from typing import Any

import jax
import keras

from stratagem._src.integrations.keras.keras_internals import (
    NEXT_SEED,
    SET_RANDOM_SEED,
    in_stateless_scope,
)
from stratagem._src.integrations.keras.plain_variables import placed
from stratagem._src.integrations.keras.replicas import one_of_several
from stratagem._src.tensorflow_api.random_seeds import set_seed

__all__ = ["next_seed", "set_random_seed"]


@functools.wraps(SET_RANDOM_SEED)
def set_random_seed(seed: int) -> None:
    """Takes the place of ``keras.utils.set_random_seed``, which sets ``tf.random``'s seed too."""
    SET_RANDOM_SEED(seed)
    set_seed(seed)


def next_seed(generator: Any, ordered: bool = True) -> Any:
    """Takes the place of ``SeedGenerator.next``."""
    replica = one_of_several()
    if replica is None or in_stateless_scope():
        return NEXT_SEED(generator, ordered)
    with keras.StatelessScope([(generator.state, generator.state.value)]) as scope:
        seed = NEXT_SEED(generator, ordered)
    # All replicas count alike; what differs is made of the count and the replica's own number.
    placed(generator.state).assign_equal(scope.get_current_value(generator.state))
    key = jax.random.wrap_key_data(seed, impl="threefry2x32")
    return jax.random.key_data(jax.random.fold_in(key, replica.replica_id_in_sync_group))
