"""Steps that take only the data, such as ``train_step(self, data)``, as Keras on TensorFlow has them.

Such a step reads and assigns variables in place, and takes gradients with a ``GradientTape``. Keras on JAX
compiles pure functions of a state. ``functional_step`` makes one of the other; and Keras's own steps take
data alone too, for ``super().train_step(data)``.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import keras

from stratagem._src.core.errors import InvalidArgumentError, VariableError
from stratagem._src.core.types import PyTree, Tensor
from stratagem._src.core.weak_identity_map import WeakIdentityMap
from stratagem._src.integrations.keras.data_step_scope import DataStepScope
from stratagem._src.integrations.keras.keras_internals import Argument, KerasModel, KerasVariable
from stratagem._src.integrations.keras.step_function import (
    PREDICT_PARTS,
    TEST_PARTS,
    TRAIN_PARTS,
)
from stratagem._src.integrations.keras.trainer_internals import (
    JAXTrainer,
    is_built,
    note_built,
    own_optimizers,
    variables_of,
)
from stratagem._src.tensorflow_api.gradient_tape import GradientTape
from stratagem._src.variables.step_keys import placeholder_keys

__all__ = [
    "build_with_step",
    "functional_step",
    "functional_steps",
    "install_data_steps",
    "takes_data",
]

_NAMES = ("train_step", "test_step", "predict_step")
_PARTS = dict(zip(_NAMES, (TRAIN_PARTS, TEST_PARTS, PREDICT_PARTS), strict=True))


def takes_data(model: KerasModel, name: str) -> bool:
    """Returns whether a step of a model takes only the data, as on TensorFlow.

    Args:
        model: The Keras model.
        name: ``train_step``, ``test_step`` or ``predict_step``.

    Raises:
        InvalidArgumentError: If it takes neither ``(state, data)`` nor ``(data)``.
    """
    step = getattr(model, name)
    try:
        signature = inspect.signature(step)
    except ValueError:
        return False
    if _accepts(signature, 2):
        return False
    if _accepts(signature, 1):
        return True
    returned = "predictions, non_trainable_variables" if name == "predict_step" else "logs, state"
    raise InvalidArgumentError(
        f"Keras calls {name}(self, data), or {name}(self, state, data), which returns ({returned}), but "
        f"that of {type(model).__name__} takes {signature}."
    )


def _accepts(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def functional_step(
    model: KerasModel, name: str, parts: Sequence[str]
) -> Callable[[PyTree, PyTree], tuple[Any, Any]]:
    """Returns a step that takes data as a pure function of the state and the data.

    Args:
        model: The Keras model.
        name: ``train_step``, ``test_step`` or ``predict_step``.
        parts: The parts of the state, by their attribute names in the model.
    """

    def step(state: PyTree, data: PyTree) -> tuple[Any, Any]:
        lists = [list(variables_of(model, part)) for part in parts]
        values = [
            pair
            for variables, arrays in zip(lists, state, strict=True)
            for pair in zip(variables, arrays, strict=True)
        ]
        with DataStepScope(values) as scope:
            result = getattr(model, name)(_packed(data))
        _check_assigned(model, name, scope, [v for variables in lists for v in variables])
        new = tuple([scope.value_of(v) for v in variables] for variables in lists)
        return result, new

    return step


@contextlib.contextmanager
def functional_steps(model: KerasModel) -> Iterator[None]:
    """Lets Keras call a model's steps as functions of state and data in the block, without a strategy."""
    given = {name for name in _NAMES if takes_data(model, name)}
    own = {name: model.__dict__.get(name) for name in given}
    try:
        # Not by setattr(), which tracks attributes.
        model.__dict__.update({name: _in_both_forms(model, name) for name in given})
        yield
    finally:
        for name, before in own.items():
            del model.__dict__[name]
            if before is not None:
                model.__dict__[name] = before


def _in_both_forms(model: KerasModel, name: str) -> Callable[..., Any]:
    of_data = getattr(model, name)
    functional = functional_step(model, name, _PARTS[name])

    @functools.wraps(of_data)  # with its signature
    def either(*args: PyTree) -> Any:
        if len(args) == 1:
            return of_data(*args)
        result, state = functional(*args)
        return (result, state[1]) if name == "predict_step" else (result, state)

    return either


def _packed(data: PyTree) -> Any:
    """Returns a batch as Keras on TensorFlow passes it: without targets and weights that are not there."""
    if not isinstance(data, tuple) or all(part is not None for part in data):
        return data
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)


def _check_assigned(
    model: KerasModel, name: str, scope: DataStepScope, state: list[KerasVariable]
) -> None:
    known = {id(variable) for variable in state}
    lost = [v.path for key, v in scope.assigned.items() if key not in known]
    if lost:
        raise VariableError(
            f"{name} of {type(model).__name__} assigns {lost}, which the model does not track, so that "
            "the new values would be lost. Make what owns them an attribute of the model: a layer, an "
            "optimizer or a metric, or a variable of add_weight()."
        )


_built: WeakIdentityMap[Any, set[str]] = WeakIdentityMap()


def is_built_with_step(model: KerasModel, name: str) -> bool:
    """Returns whether a step has created its variables already."""
    return name in _built.get(model, ()) and is_built(model)


def build_with_step(model: KerasModel, name: str, batch: PyTree) -> None:
    """Creates the variables that a step creates: of layers, optimizers and metrics; computes nothing.

    Args:
        model: The Keras model.
        name: ``train_step`` or ``test_step``, which takes data.
        batch: A batch. Only its shapes and dtypes are used.
    """
    examples = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), batch)

    known = list({id(v): v for part in TRAIN_PARTS for v in variables_of(model, part)}.values())
    values = [jax.ShapeDtypeStruct(tuple(v.shape), v.dtype) for v in known]

    def step(values: list[Tensor], data: PyTree) -> list[Any]:
        scope = DataStepScope(zip(known, values, strict=True))
        with scope, placeholder_keys():
            result = getattr(model, name)(_packed(data))
        tracked = [v for part in TRAIN_PARTS for v in variables_of(model, part)]
        _check_assigned(model, name, scope, tracked)
        return jax.tree.leaves(result)

    # Keras creates variables with shapes alone in a stateless scope, and their values at its end.
    with keras.StatelessScope():
        jax.eval_shape(step, values, examples)
    note_built(model)
    _built.setdefault(model, set()).add(name)


# --- the steps of Keras, with data alone --------------------------------------------------------------


def install_data_steps() -> None:
    """Lets the steps of Keras take data alone, and adds what its models have on TensorFlow."""
    for name, step in zip(_NAMES, (_train_step, _test_step, _predict_step), strict=True):
        setattr(JAXTrainer, name, _with_data(getattr(JAXTrainer, name), step))
    JAXTrainer.compiled_metrics = property(_CompiledMetrics)
    JAXTrainer.compiled_loss = _compiled_loss
    JAXTrainer._get_jax_state = _with_own_optimizers(JAXTrainer._get_jax_state)
    JAXTrainer.jax_state_sync = _returning_own_optimizers(JAXTrainer.jax_state_sync)


def _with_data(original: Callable[..., Any], step: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def either(self: KerasModel, *args: Argument, **kwargs: Argument) -> Any:
        if len(args) + len(kwargs) == 1:
            return step(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    return either


def _train_step(model: KerasModel, data: PyTree) -> Any:
    return model.compute_metrics(*_train(model, data))


def _test_step(model: KerasModel, data: PyTree) -> Any:
    return model.compute_metrics(*_test(model, data))


def _train(model: KerasModel, data: PyTree) -> tuple[Any, ...]:
    """Trains with a batch; returns ``x``, ``y``, the predictions and the weights, for metrics."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with GradientTape() as tape:
        y_pred = _call(model, x, training=True)
        loss = model._compute_loss(
            x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True
        )
        scaled = loss if model.optimizer is None else model.optimizer.scale_loss(loss)
    _track_loss(model, loss, x)
    weights = model.trainable_weights
    if weights:
        gradients = tape.gradient(scaled, weights)
        model.optimizer.apply_gradients(zip(gradients, weights, strict=True))
    return x, y, y_pred, sample_weight


def _test(model: KerasModel, data: PyTree) -> tuple[Any, ...]:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    y_pred = _call(model, x, training=False)
    loss = model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=False)
    _track_loss(model, loss, x)
    return x, y, y_pred, sample_weight


_COMPUTE = {"train_step": _train, "test_step": _test}


def is_own_step(model: KerasModel, name: str) -> bool:
    """Returns whether the class of a model defines a step itself."""
    return getattr(type(model), name) is not getattr(JAXTrainer, name)


def call_step(model: KerasModel, name: str, data: PyTree) -> Any:
    """Calls a step that takes data. Those of Keras update metrics and do not read the results."""
    data = _packed(data)
    if name not in _COMPUTE or is_own_step(model, name):
        return getattr(model, name)(data)
    x, y, y_pred, sample_weight = _COMPUTE[name](model, data)
    if type(model).compute_metrics is not JAXTrainer.compute_metrics:
        model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    elif model._compile_metrics is not None:
        model._compile_metrics.update_state(y, y_pred, sample_weight=sample_weight)
    return None


def _predict_step(model: KerasModel, data: PyTree) -> Any:
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    return _call(model, x, training=False)


def _call(model: KerasModel, x: PyTree, *, training: bool) -> Any:
    return model(x, training=training) if model._call_has_training_arg else model(x)


def _track_loss(model: KerasModel, loss: Tensor, x: PyTree) -> None:
    num_rows = next(leaf for leaf in keras.tree.flatten(x) if leaf is not None).shape[0]
    model._loss_tracker.update_state(loss, sample_weight=num_rows)


class _CompiledMetrics:
    """The metrics that were passed to ``compile``, by their name in Keras 2."""

    def __init__(self, model: KerasModel) -> None:
        self._model = model

    @property
    def metrics(self) -> list[Any]:
        """The metrics."""
        compiled = self._model._compile_metrics
        return [] if compiled is None else list(compiled.metrics)

    def update_state(self, y_true: PyTree, y_pred: PyTree, sample_weight: PyTree = None) -> None:
        """Updates them with a batch."""
        compiled = self._model._compile_metrics
        if compiled is not None:
            compiled.update_state(y_true, y_pred, sample_weight=sample_weight)


def _compiled_loss(
    model: KerasModel,
    y_true: PyTree,
    y_pred: PyTree,
    sample_weight: PyTree = None,
    regularization_losses: Sequence[Tensor] | None = None,
) -> Any:
    """Returns the compiled loss plus ``regularization_losses``, as in Keras 2; tracks its mean."""
    loss = model._compile_loss(y_true, y_pred, sample_weight)
    for term in regularization_losses or ():
        loss = loss + term
    _track_loss(model, loss, y_pred)
    return loss


# --- optimizers besides `model.optimizer`, without a strategy ----------------------------------------


def _with_own_optimizers(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_state(self: KerasModel, **wanted: bool) -> Any:
        state = original(self, **wanted)
        others = _variables_of_others(self) if wanted.get("optimizer_variables") else []
        if not others:
            return state
        position = sum(bool(wanted.get(part)) for part in _BEFORE_OPTIMIZER)
        values = [*state[position], *(variable.value for variable in others)]
        return (*state[:position], values, *state[position + 1 :])

    return get_state


_BEFORE_OPTIMIZER = ("trainable_variables", "non_trainable_variables")


def _returning_own_optimizers(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def sync_state(self: KerasModel) -> None:
        state = getattr(self, "_jax_state", None)
        values = () if not state or self._jax_state_synced else state.get("optimizer_variables", ())
        original(self)
        others = _variables_of_others(self) if values else []
        if others:
            for variable, value in zip(others, values[-len(others) :], strict=True):
                variable.assign(value)

    return sync_state


def _variables_of_others(model: KerasModel) -> list[KerasVariable]:
    return [v for one in own_optimizers(model) for v in one.variables]
