"""Installs all patches of Keras on JAX. The patches themselves are in the other files of this package."""

from __future__ import annotations

from typing import Any

import keras

from stratagem._src.core.errors import UnsupportedError
from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras import layer_patches, optimizers
from stratagem._src.integrations.keras.call_errors import install_call_errors
from stratagem._src.integrations.keras.checkpoints import (
    checkpoint_variables,
    install_deferred_restore,
    restore_when_built,
)
from stratagem._src.integrations.keras.existing_variables import (
    existing_variables,
)
from stratagem._src.integrations.keras.keras2_compat import (
    install_keras2_names,
    look_up_without_tensorflow,
    write_without_tensorflow,
)
from stratagem._src.integrations.keras.keras2_saving import save_in_directories
from stratagem._src.integrations.keras.keras_internals import (
    OPTIMIZER,
    Argument,
    in_symbolic_scope,
)
from stratagem._src.integrations.keras.layer_patches import call_layer
from stratagem._src.integrations.keras.leaf_variables import install_leaf_variables
from stratagem._src.integrations.keras.metrics import skip_empty_updates
from stratagem._src.integrations.keras.model_pickling import install_pickling
from stratagem._src.integrations.keras.model_strategy import add_layer
from stratagem._src.integrations.keras.owner_scope import install_owner_scopes
from stratagem._src.integrations.keras.placed_variable import PlacedVariable, check_strategy
from stratagem._src.integrations.keras.plain_variables import patch_plain_variables, twin_of
from stratagem._src.integrations.keras.remote_apply import add_slot
from stratagem._src.integrations.keras.remote_embedding import look_up
from stratagem._src.integrations.keras.symbolic_functions import install_symbolic_functions
from stratagem._src.integrations.keras.trainer import install_trainer
from stratagem._src.strategies.current import get_strategy
from stratagem._src.variables import frames
from stratagem._src.variables.foreign_variables import register_trackable, register_variable_wrapper
from stratagem._src.variables.random_state import register_shape_inference

__all__ = ["bridge_jax"]


def bridge_jax() -> None:
    """Patches Keras: variables are created by the current strategy, and replicas update them together."""
    keras.Variable.__new__ = _create_variable
    patch_plain_variables()
    register_variable_wrapper(keras.Variable, twin_of)
    for kind in (keras.Layer, keras.Optimizer, keras.Metric):
        register_trackable(kind, checkpoint_variables, restore_when_built, existing_variables)
    OPTIMIZER.apply = optimizers.apply
    OPTIMIZER.apply_gradients = optimizers.apply_gradients
    OPTIMIZER.add_variable_from_reference = add_slot
    keras.layers.Embedding.call = look_up
    install_pickling()
    keras.optimizers.LossScaleOptimizer.apply = optimizers.apply_scaled
    keras.random.SeedGenerator.next = layer_patches.next_seed
    keras.utils.set_random_seed = layer_patches.set_random_seed
    register_shape_inference(in_symbolic_scope)
    keras.Layer.__call__ = call_layer
    keras.Layer._maybe_build = layer_patches.maybe_build
    keras.Layer.add_loss = layer_patches.add_loss
    keras.Layer._get_own_losses = layer_patches.own_losses
    keras.Layer._clear_losses = layer_patches.clear_losses
    keras.Sequential.add = add_layer
    install_owner_scopes()
    skip_empty_updates()
    install_trainer()
    install_deferred_restore()
    install_leaf_variables()
    install_call_errors()
    install_keras2_names()
    save_in_directories()
    write_without_tensorflow()
    look_up_without_tensorflow()
    install_symbolic_functions()


def _create_variable(cls: type, *args: Argument, **kwargs: Argument) -> Any:
    if not context.has_strategy() and frames.current_frame() is None:
        return object.__new__(cls)
    strategy = get_strategy()
    check_strategy(strategy)
    if cls not in (keras.Variable, PlacedVariable):
        raise UnsupportedError(
            "In the scope of a strategy and in compiled functions Keras variables must be of the class "
            f"keras.Variable, got {cls.__name__}. Create it outside, or use keras.Variable."
        )
    made = object.__new__(PlacedVariable)
    made.strategy = strategy
    return made
