"""What is changed in Keras on JAX. Each place is named here; what it does is in a file of its own."""

from __future__ import annotations

from typing import Any

import keras

from stratagem._src.core.errors import UnsupportedError
from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras import building, layer_losses, optimizing, seeds
from stratagem._src.integrations.keras.deferred_restore import (
    install_deferred_restore,
    restore_when_built,
)
from stratagem._src.integrations.keras.directory_saving import save_in_directories
from stratagem._src.integrations.keras.keras2_names import install_keras2_names
from stratagem._src.integrations.keras.keras_internals import OPTIMIZER
from stratagem._src.integrations.keras.layer_inputs import call_layer
from stratagem._src.integrations.keras.metric_updates import skip_empty_updates
from stratagem._src.integrations.keras.model_strategy import add_layer
from stratagem._src.integrations.keras.owner_scope import install_owner_scopes
from stratagem._src.integrations.keras.placed_variable import PlacedVariable, check_strategy
from stratagem._src.integrations.keras.plain_variables import twin_of, watch_plain_variables
from stratagem._src.integrations.keras.saving import variables_of
from stratagem._src.integrations.keras.tensorboard import write_without_tensorflow
from stratagem._src.integrations.keras.trainer import install_trainer
from stratagem._src.strategies.current import get_strategy
from stratagem._src.variables import access as state
from stratagem._src.variables.stand_ins import register_holder, register_stand_in

__all__ = ["bridge_jax"]


def bridge_jax() -> None:
    """Makes ``keras.Variable(...)`` ask the current strategy what to build, and replicas agree."""
    keras.Variable.__new__ = _create_variable
    watch_plain_variables()
    register_stand_in(keras.Variable, twin_of)
    for kind in (keras.Layer, keras.Optimizer, keras.Metric):
        register_holder(kind, variables_of, restore_when_built)
    OPTIMIZER.apply = optimizing.apply
    keras.optimizers.LossScaleOptimizer.apply = optimizing.apply_scaled
    keras.random.SeedGenerator.next = seeds.next_seed
    keras.utils.set_random_seed = seeds.set_random_seed
    keras.Layer.__call__ = call_layer
    keras.Layer._maybe_build = building.maybe_build
    keras.Layer.add_loss = layer_losses.add_loss
    keras.Layer._get_own_losses = layer_losses.own_losses
    keras.Layer._clear_losses = layer_losses.clear_losses
    keras.Sequential.add = add_layer
    install_owner_scopes()
    skip_empty_updates()
    install_trainer()
    install_deferred_restore()
    install_keras2_names()
    save_in_directories()
    write_without_tensorflow()


def _create_variable(cls: type, *args: Any, **kwargs: Any) -> Any:
    if not context.has_strategy() and state.current_frame() is None:
        return object.__new__(cls)
    strategy = get_strategy()
    check_strategy(strategy)
    if cls not in (keras.Variable, PlacedVariable):
        raise UnsupportedError(
            "In the scope of a strategy and in compiled functions Keras variables are of the class "
            f"keras.Variable, got {cls.__name__}. Create it outside, or use keras.Variable."
        )
    made = object.__new__(PlacedVariable)
    made.strategy = strategy
    return made
