"""The private names of Keras that patches need, each with a test that fails when it is gone.

Keras has no type annotations, so the aliases here only tell a reader what a parameter is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import keras
from keras.src.backend import compute_output_spec as _compute_output_spec
from keras.src.backend.common.dtypes import PYTHON_DTYPES_MAP as DTYPE_NAMES
from keras.src.backend.common.masking import get_keras_mask as mask_of
from keras.src.backend.common.masking import set_keras_mask as set_mask
from keras.src.backend.common.name_scope import current_path
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.backend.common.stateless_scope import in_stateless_scope as _in_stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope as _in_symbolic_scope
from keras.src.backend.common.variables import Variable as _CommonVariable
from keras.src.callbacks import orbax_checkpoint as _orbax_checkpoint
from keras.src.saving import saving_api as _saving_api
from keras.src.saving import saving_lib as _saving_lib
from keras.src.saving.keras_saveable import KerasSaveable as _KerasSaveable
from keras.src.utils import jax_layer as _jax_layer
from keras.src.utils import traceback_utils as _traceback_utils
from keras.src.utils import tracking as _tracking

__all__ = [
    "ABSTRACT_STATE",
    "ADD_LAYER",
    "ADD_LOSS",
    "ADD_METRIC_VARIABLE",
    "ADD_OPTIMIZER_VARIABLE",
    "ADD_SLOT",
    "ADD_WEIGHT",
    "APPLY",
    "APPLY_SCALED",
    "ATTRIBUTES_NOT_SAVED",
    "CALL_LAYER",
    "CLEAR_LOSSES",
    "COMMON_VARIABLE",
    "DTYPE_NAMES",
    "INIT_BATCH_NORMALIZATION",
    "LAYER_NEW",
    "LOOK_UP",
    "MAYBE_BUILD",
    "METRIC_INIT",
    "MOMENTS",
    "NEXT_SEED",
    "OPTIMIZER",
    "OWN_LOSSES",
    "SAVEABLE",
    "SET_RANDOM_SEED",
    "STATE_TO_SAVE",
    "TRACKED",
    "TRACKER",
    "Argument",
    "KerasAdapter",
    "KerasLayer",
    "KerasModel",
    "KerasObject",
    "KerasOptimizer",
    "KerasVariable",
    "Logs",
    "build_shapes_of",
    "call_info_injector",
    "checkpointed_arrays",
    "current_path",
    "current_stateless_scope",
    "in_stateless_scope",
    "in_symbolic_scope",
    "is_new",
    "mark_as_injected",
    "mask_of",
    "output_spec_of",
    "replace_abstract_state",
    "replace_attributes_not_saved",
    "replace_call_info_injector",
    "replace_jax_of_jax_layers",
    "replace_state_to_save",
    "run_graph",
    "set_mask",
    "stateless_value",
]

KerasModel: TypeAlias = Any
"""A ``keras.Model``."""

KerasLayer: TypeAlias = Any
"""A ``keras.Layer``, which a model is too."""

KerasOptimizer: TypeAlias = Any
"""A ``keras.Optimizer``."""

KerasVariable: TypeAlias = Any
"""A ``keras.Variable``, of any class."""

KerasAdapter: TypeAlias = Any
"""A data adapter, which feeds Keras with batches."""

KerasObject: TypeAlias = Any
"""Another object of Keras: a metric, a callback, a seed generator, or any of the above."""

Argument: TypeAlias = Any
"""An argument that a patched method passes on to Keras."""

Logs: TypeAlias = dict[str, Any] | None
"""The metrics that Keras passes to callbacks."""

COMMON_VARIABLE: Any = _CommonVariable
"""The base class of the variables of every backend."""

SAVEABLE: Any = _KerasSaveable
"""The base class of models, layers, optimizers and metrics."""

TRACKER: Any = _tracking.Tracker
"""Records the variables and layers that are attributes of an object."""

TRACKED: Any = (
    _tracking.TrackedList,
    _tracking.TrackedDict,
    _tracking.TrackedOrderedDict,
    _tracking.TrackedSet,
)
"""The collections of a tracker."""

OPTIMIZER: Any = next(cls for cls in keras.Optimizer.__mro__ if "apply" in vars(cls))
"""The base class of optimizers that defines ``apply``."""

# The original methods that patches wrap.
APPLY: Callable[..., Any] = OPTIMIZER.apply
APPLY_SCALED: Callable[..., Any] = keras.optimizers.LossScaleOptimizer.apply
NEXT_SEED: Callable[..., Any] = keras.random.SeedGenerator.next
SET_RANDOM_SEED: Callable[[int], None] = keras.utils.set_random_seed
LAYER_NEW: Callable[..., Any] = keras.Layer.__new__
CALL_LAYER: Callable[..., Any] = keras.Layer.__call__
ADD_WEIGHT: Callable[..., Any] = keras.Layer.add_weight
ADD_LAYER: Callable[..., None] = keras.Sequential.add
METRIC_INIT: Callable[..., None] = keras.Metric.__init__
ADD_METRIC_VARIABLE: Callable[..., Any] = keras.Metric.add_variable
ADD_OPTIMIZER_VARIABLE: Callable[..., Any] = OPTIMIZER.add_variable
ADD_SLOT: Callable[..., Any] = OPTIMIZER.add_variable_from_reference
LOOK_UP: Callable[..., Any] = keras.layers.Embedding.call
MAYBE_BUILD: Callable[..., Any] = keras.Layer._maybe_build
INIT_BATCH_NORMALIZATION: Callable[..., None] = keras.layers.BatchNormalization.__init__
MOMENTS: Callable[..., Any] = keras.layers.BatchNormalization._moments
ADD_LOSS: Callable[..., Any] = keras.Layer.add_loss
OWN_LOSSES: Callable[..., Any] = keras.Layer._get_own_losses
CLEAR_LOSSES: Callable[..., Any] = keras.Layer._clear_losses


def in_stateless_scope() -> bool:
    """Returns whether this thread is in a ``keras.StatelessScope``."""
    return bool(_in_stateless_scope())


def in_symbolic_scope() -> bool:
    """Returns whether Keras traces only to infer shapes and dtypes, in this thread."""
    return bool(_in_symbolic_scope())


def is_new(layer: KerasLayer) -> bool:
    """Returns whether a layer has not been called yet."""
    return not layer._called


def run_graph(model: KerasModel, inputs: Any) -> Any:
    """Calls the operations of a functional model with these inputs, without converting them."""
    return model._run_through_graph(inputs, operation_fn=lambda operation: operation)


def current_stateless_scope() -> Any | None:
    """Returns the current ``keras.StatelessScope``, if any."""
    return get_stateless_scope()


def stateless_value(variable: KerasVariable) -> Any:
    """Returns the value of a variable in the current ``keras.StatelessScope``, if any."""
    return get_stateless_scope().get_current_value(variable) if _in_stateless_scope() else None


STATE_TO_SAVE: Callable[[Any], Any] = _orbax_checkpoint._get_state_tree
"""Returns the state of a model that ``OrbaxCheckpoint`` saves."""

ABSTRACT_STATE: Callable[..., Any] = _saving_api.build_orbax_abstract_pytree
"""Returns the abstract arrays to load from an Orbax checkpoint; ``None`` to load them as saved."""


def replace_state_to_save(function: Callable[[Any], Any]) -> None:
    """Makes ``OrbaxCheckpoint`` call ``function`` for the state of a model."""
    _orbax_checkpoint._get_state_tree = function


def replace_abstract_state(function: Callable[..., Any]) -> None:
    """Makes Keras call ``function`` for the abstract arrays of an Orbax checkpoint."""
    _saving_api.build_orbax_abstract_pytree = function


ATTRIBUTES_NOT_SAVED: Callable[[str], set[str]] = _saving_lib.get_attr_skipset
"""Returns the names of what every object of a kind has; makes such an object to know them."""


def replace_attributes_not_saved(function: Callable[[str], set[str]]) -> None:
    """Makes Keras call ``function`` for the attributes of a kind of object that are not saved."""
    _saving_lib.get_attr_skipset = function


def call_info_injector() -> Callable[..., Any]:
    """Returns the function that wraps ``call`` of a layer to add its arguments to errors."""
    injector: Callable[..., Any] = _traceback_utils.inject_argument_info_in_traceback
    return injector


def replace_call_info_injector(function: Callable[..., Any]) -> None:
    """Makes Keras call ``function`` instead of ``call_info_injector()``."""
    _traceback_utils.inject_argument_info_in_traceback = function


def mark_as_injected(error: Any) -> None:
    """Makes Keras raise an error as it is, without the arguments of the layer."""
    error._keras_call_info_injected = True


def replace_jax_of_jax_layers(module: Any) -> None:
    """Gives ``JaxLayer`` and ``FlaxLayer`` another object for the module ``jax``."""
    _jax_layer.jax = module


def checkpointed_arrays(path: str) -> Any:
    """Returns the shapes and dtypes of the arrays that ``OrbaxCheckpoint`` saved at ``path``."""
    return _saving_api.ocp.pytree_metadata(path, checkpointable_name="pytree").metadata


def build_shapes_of(model: KerasModel) -> dict[str, Any]:
    """Returns the shapes of the arrays that a model was first called with, by argument."""
    return getattr(model, "_build_shapes_dict", None) or {}


def output_spec_of(function: Callable[..., Any], *args: Argument) -> Any:
    """Returns the symbolic result of a function of symbolic tensors."""
    return _compute_output_spec(function, *args)
