"""Keras objects in checkpoints: their variables, restoring before they are built, and the Orbax format."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np

from stratagem._src.core.types import PyTree
from stratagem._src.core.weak_identity_map import WeakIdentityMap
from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras.keras_internals import (
    ABSTRACT_STATE,
    OPTIMIZER,
    STATE_TO_SAVE,
    Argument,
    KerasModel,
    KerasObject,
    KerasOptimizer,
    KerasVariable,
    checkpointed_arrays,
    replace_abstract_state,
    replace_state_to_save,
)
from stratagem._src.integrations.keras.model_strategy import strategy_of_model
from stratagem._src.integrations.keras.owner_scope import owner_of
from stratagem._src.integrations.keras.placed_variable import PlacedVariable
from stratagem._src.integrations.keras.plain_variables import twin_of
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.mesh.process_monitor import has_process_monitor
from stratagem._src.variables import frames
from stratagem._src.variables.foreign_variables import NotBuiltError
from stratagem._src.variables.variable import Variable

__all__ = [
    "checkpoint_variables",
    "install_deferred_restore",
    "install_orbax_arrays",
    "restore_all_deferred",
    "restore_deferred",
    "restore_when_built",
]


def checkpoint_variables(keras_object: KerasObject) -> dict[str, Variable]:
    """Returns the variables of a layer, model, optimizer or metric, by index.

    Keras paths are not stable: Keras numbers objects in creation order, which differs between programs.

    Raises:
        NotBuiltError: If the object is not built, so that it may get more variables.
    """
    if not _is_built(keras_object):
        raise NotBuiltError(
            "A Checkpoint needs Keras objects that have all their variables, but "
            f"{keras_object.name!r} is not built. Call model.build(input_shape), or "
            "optimizer.build(model.trainable_variables), first; a metric is built by its first update."
        )
    return {f"{index:04}": twin_of(v) for index, v in enumerate(keras_object.variables)}


_waiting: WeakIdentityMap[Any, Callable[[Any], None]] = WeakIdentityMap()


def restore_when_built(unbuilt: KerasObject, restore: Callable[[Any], None]) -> None:
    """Calls ``restore`` with a Keras object once it is built; replaces an earlier pending restore.

    Keras builds an optimizer at its first step, and a model without ``keras.Input`` at its first call;
    programs restore checkpoints before that.
    """
    _waiting[unbuilt] = restore


def restore_deferred(built: KerasObject) -> None:
    """Runs the pending restore of a Keras object if it is built now."""
    if not _waiting or not _is_built(built) or not all(map(_has_value, built.variables)):
        return
    restore = _waiting.pop(built, None)
    if restore is not None:
        strategy = owner_of(built) or context.default_frame().strategy
        # Outside of any trace: as part of a traced program the values would be assigned in each call.
        with context.enter(context.Frame(strategy, None)), frames.outside_of_frames():
            evaluate_now(lambda: restore(built))


def restore_all_deferred() -> None:
    """Runs the pending restores of all Keras objects that are built now.

    ``fit`` builds a model and its optimizer symbolically; their variables get values afterwards.
    """
    for pending in list(_waiting):
        restore_deferred(pending)


def _is_built(keras_object: KerasObject) -> bool:
    # Metrics whose variables depend on the shape of their data have the private attribute.
    attribute = "_built" if isinstance(keras_object, keras.Metric) else "built"
    if getattr(keras_object, attribute, True):
        return True
    # Keras never calls a model built whose class overrides `__call__` in place of `call`.
    overrides = isinstance(keras_object, keras.Model) and (
        type(keras_object).__call__ is not keras.Layer.__call__
    )
    return overrides and bool(keras_object.layers) and all(map(_is_built, keras_object.layers))


def _has_value(variable: KerasVariable) -> bool:
    return (variable.twin if isinstance(variable, PlacedVariable) else variable._value) is not None


def install_deferred_restore() -> None:
    """Wraps ``build`` of optimizers and metrics, also of later subclasses, to run pending restores."""
    original = OPTIMIZER.__init_subclass__

    def init_subclass(cls: KerasObject, /, **kwargs: Argument) -> None:
        original(**kwargs)
        _wrap_build(cls)

    OPTIMIZER.__init_subclass__ = classmethod(init_subclass)
    for cls in (OPTIMIZER, *_subclasses(OPTIMIZER)):
        _wrap_build(cls)
    for cls in (keras.metrics.AUC, keras.metrics.FBetaScore, keras.metrics.R2Score):
        _wrap_build(cls, "_build")


def _subclasses(cls: type) -> set[type]:
    found: set[type] = set(cls.__subclasses__())
    return found.union(*map(_subclasses, found))


def _wrap_build(cls: KerasObject, name: str = "build") -> None:
    if name not in vars(cls):
        return
    original = vars(cls)[name]

    @functools.wraps(original)
    def build(self: KerasOptimizer, *args: Argument, **kwargs: Argument) -> Any:
        result = original(self, *args, **kwargs)
        # Subclasses that add slots call the base class's build first: only the outermost call is the end.
        if getattr(type(self), name) is build:
            restore_deferred(self)
        return result

    setattr(cls, name, build)


def install_orbax_arrays() -> None:
    """Makes ``OrbaxCheckpoint``, and loading its checkpoints, work with several workers.

    Every worker has all values of a model. Orbax rejects arrays that are on the devices of one process
    only, and loads arrays onto the devices that they were saved from, which other jobs do not have. So
    workers save and load NumPy arrays.
    """
    replace_state_to_save(_state_to_save)
    replace_abstract_state(_abstract_state)


def _state_to_save(model: KerasModel) -> Any:
    """Returns the values of a model; all workers must call it, because metrics are summed over workers."""
    strategy = strategy_of_model(model)
    if strategy is None or not strategy.replica_group.spans_processes:
        return STATE_TO_SAVE(model)
    state = model.get_state_tree(value_format="numpy_array")
    # Copied: Orbax writes in the background, while steps replace the values.
    return keras.tree.map_structure(np.array, state)


def _abstract_state(path: str, current: PyTree = None) -> Any:
    """Returns the arrays to load from a checkpoint, without content."""
    if not has_process_monitor() or jax.process_count() == 1:
        return ABSTRACT_STATE(path, current)
    return jax.tree.map(
        lambda array: np.broadcast_to(np.zeros((), array.dtype), array.shape),
        checkpointed_arrays(path),
    )
