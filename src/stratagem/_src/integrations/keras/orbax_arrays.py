"""What Keras saves and loads by Orbax, in a job of several workers: NumPy arrays.

Every worker has all values of a model. Orbax refuses arrays that lie on the devices of one process only,
and loads arrays onto the devices that they were saved from, which other jobs do not have.
"""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np

from stratagem._src.integrations.keras.keras_internals import (
    ABSTRACT_STATE,
    STATE_TO_SAVE,
    checkpointed_arrays,
    replace_abstract_state,
    replace_state_to_save,
)
from stratagem._src.integrations.keras.model_strategy import strategy_of_model
from stratagem._src.mesh.dispatch_queue import has_process_watch

__all__ = ["install_orbax_arrays"]


def install_orbax_arrays() -> None:
    """Makes ``OrbaxCheckpoint``, and loading what it has saved, work in several workers."""
    replace_state_to_save(_state_to_save)
    replace_abstract_state(_abstract_state)


def _state_to_save(model: Any) -> Any:
    """Returns the values of a model; all workers call it, because they add up metrics together."""
    strategy = strategy_of_model(model)
    if strategy is None or not strategy.replica_group.spans_processes:
        return STATE_TO_SAVE(model)
    state = model.get_state_tree(value_format="numpy_array")
    # Of its own memory: it is written in the background, while steps replace the values.
    return keras.tree.map_structure(np.array, state)


def _abstract_state(path: str, current: Any = None) -> Any:
    """Returns what to load from a checkpoint, as arrays without content."""
    if not has_process_watch() or jax.process_count() == 1:
        return ABSTRACT_STATE(path, current)
    return jax.tree.map(
        lambda array: np.broadcast_to(np.zeros((), array.dtype), array.shape),
        checkpointed_arrays(path),
    )
