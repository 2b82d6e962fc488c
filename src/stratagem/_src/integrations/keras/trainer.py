"""Patches the Keras trainer for strategies: ``fit``, ``evaluate``, ``predict`` and ``*_on_batch``.

The loops, callbacks and steps of Keras are unchanged. The patches replace how a step is compiled, where
batches are placed, and how a model's state is kept if something fails. Models without a strategy are not
affected.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras

from stratagem._src.core.errors import InvalidArgumentError, UnsupportedError
from stratagem._src.core.types import PyTree
from stratagem._src.current_strategy import context
from stratagem._src.input.distributed_dataset import DistributedDataset
from stratagem._src.integrations.keras.batch_placement import place_batch
from stratagem._src.integrations.keras.callbacks import (
    callbacks_of_worker,
    install_batch_callbacks,
    is_elastic,
    is_leader,
)
from stratagem._src.integrations.keras.checkpoints import install_orbax_arrays, restore_all_deferred
from stratagem._src.integrations.keras.data_consistency import comparison_of
from stratagem._src.integrations.keras.data_steps import (
    build_with_step,
    functional_step,
    functional_steps,
    install_data_steps,
    is_built_with_step,
    takes_data,
)
from stratagem._src.integrations.keras.dataset_adapter import DatasetAdapter, is_dataset
from stratagem._src.integrations.keras.dataset_creator import DatasetCreator
from stratagem._src.integrations.keras.keras_internals import Argument, KerasModel, KerasObject
from stratagem._src.integrations.keras.metrics import as_keras_metrics
from stratagem._src.integrations.keras.model_state import (
    check_trained_here,
    return_state,
    take_state,
)
from stratagem._src.integrations.keras.model_strategy import (
    check_created_with,
    record_model_creation,
    strategy_of_model,
    strategy_to_compile_for,
)
from stratagem._src.integrations.keras.placed_data import PlacedData
from stratagem._src.integrations.keras.progress_widget import with_progress_widget
from stratagem._src.integrations.keras.server_trainer import (
    call_on_servers,
    finish_steps,
    install_server_trainer,
    is_on_parameter_servers,
)
from stratagem._src.integrations.keras.step_function import (
    PREDICT_PARTS,
    TEST_PARTS,
    TRAIN_PARTS,
    StepFunction,
)
from stratagem._src.integrations.keras.step_program import keeps_state
from stratagem._src.integrations.keras.trainer_calls import (
    begin_call,
    called_method,
    calling_method,
    run_exclusively,
    running_call,
)
from stratagem._src.integrations.keras.trainer_internals import (
    JAXTrainer,
    Trainer,
    data_adapter_of,
    distribute_data,
    first_batch,
    is_built,
    jit,
    replace_data_adapter_of,
    replace_distribute_data,
    replace_jit,
)
from stratagem._src.integrations.keras.worker_data import (
    ChiefBatches,
    batch_on_chief,
    worker_data_of,
)
from stratagem._src.integrations.keras.worker_steps import ChiefSteps, WorkerSteps, check_step
from stratagem._src.strategies.base import Strategy
from stratagem._src.variables.step_keys import KeyedStep

__all__ = ["install_trainer"]

_CALLS = (
    "fit",
    "evaluate",
    "predict",
    "train_on_batch",
    "test_on_batch",
    "predict_on_batch",
)
_STEPS = {"evaluate": "test_step", "test_on_batch": "test_step"}
_METRICS = {"metrics", "weighted_metrics"}


@functools.cache
def install_trainer() -> None:
    """Patches the trainer, so that models under a strategy are trained by it."""
    install_data_steps()
    install_server_trainer()
    JAXTrainer.__init__ = _recording_creation(JAXTrainer.__init__)
    Trainer.compile = _compiling(Trainer.compile)
    Trainer._symbolic_build = _building(Trainer._symbolic_build)
    for name in _CALLS:
        setattr(JAXTrainer, name, _calling(getattr(JAXTrainer, name)))
    JAXTrainer.make_train_function = _making(
        JAXTrainer.make_train_function, "train_function", _train_function
    )
    JAXTrainer.make_test_function = _making(
        JAXTrainer.make_test_function, "test_function", _test_function
    )
    JAXTrainer.make_predict_function = _making(
        JAXTrainer.make_predict_function, "predict_function", _predict_function
    )
    JAXTrainer._get_jax_state = _taking_state(JAXTrainer._get_jax_state)
    JAXTrainer.jax_state_sync = _putting_back_state(JAXTrainer.jax_state_sync)
    replace_data_adapter_of(_data_adapter_of)
    replace_distribute_data(_distribute_data)
    replace_jit(_jit_step)
    install_batch_callbacks()
    install_orbax_arrays()


def _recording_creation(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: KerasModel, *args: Argument, **kwargs: Argument) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        record_model_creation(self)

    return __init__


def _compiling(original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compile(self: KerasModel, *args: Argument, **kwargs: Argument) -> None:
        strategy = strategy_to_compile_for(self)
        bound = signature.bind(self, *args, **kwargs)
        given = bound.arguments
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            for name in _METRICS & given.keys():
                given[name] = as_keras_metrics(given[name])
            parts = [given.get(name) for name in ("optimizer", *_METRICS)]
            check_created_with(strategy, keras.tree.flatten(parts))
            original(*bound.args, **bound.kwargs)

    return compile


def _calling(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(self: KerasModel, *args: Argument, **kwargs: Argument) -> Any:
        with calling_method(self, original.__name__):
            return call_here(self, *args, **kwargs)

    def call_here(self: KerasModel, *args: Argument, **kwargs: Argument) -> Any:
        strategy = strategy_of_model(self)
        if strategy is None:
            with functional_steps(self):
                return original(self, *args, **kwargs)
        context.require_cross_replica(strategy, f"{original.__name__} of a Keras model")
        shown = with_progress_widget(signature.bind(self, *args, **kwargs))
        if shown is not None:
            args, kwargs = (), shown
        if strategy.replica_group.spans_processes:
            bound = signature.bind(self, *args, **kwargs)
            kwargs = _arguments_of_worker(original.__name__, bound, strategy)
            args = ()
        return run_exclusively(self, original.__name__, lambda: run(self, strategy, args, kwargs))

    def run_on_servers(
        self: KerasModel, strategy: Strategy, args: Argument, kwargs: Argument
    ) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments
        with begin_call(self, strategy), _scope_to_build(self, strategy):
            return call_on_servers(
                self, strategy, original.__name__, given, lambda: original(self, *args, **kwargs)
            )

    def run(self: KerasModel, strategy: Strategy, args: Argument, kwargs: Argument) -> Any:
        if is_on_parameter_servers(strategy):
            return run_on_servers(self, strategy, args, kwargs)
        check_trained_here(self)
        return_state(self)  # a callback of one call may start another
        with begin_call(self, strategy), _scope_to_build(self, strategy):
            try:
                return original(self, *args, **kwargs)
            except BaseException:
                return_state(self)
                raise

    return call


def _scope_to_build(model: KerasModel, strategy: Strategy) -> AbstractContextManager[object]:
    """Returns the strategy's scope for a model that is built with its first batch.

    A built model needs no scope: objects that callbacks create, or Keras while saving, do not belong to the
    strategy.
    """
    return contextlib.nullcontext() if is_built(model) else strategy.scope()


def _building(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def symbolic_build(
        self: KerasModel, iterator: KerasObject = None, data_batch: PyTree = None
    ) -> None:
        strategy = strategy_of_model(self)
        if iterator is not None and is_elastic(strategy):
            # Keras draws a batch only if the model is not built. A joining worker's model is not built, so
            # every worker draws it here to stay aligned.
            data_batch = first_batch(iterator)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            step = _STEPS.get(called_method(self), "train_step")
            if takes_data(self, step) or is_on_parameter_servers(strategy):
                if is_on_parameter_servers(strategy):
                    check_step(self, step)
                if not is_built_with_step(self, step):
                    batch = first_batch(iterator) if data_batch is None else data_batch
                    build_with_step(self, step, batch_on_chief(batch))
            else:
                original(self, iterator, data_batch)
        restore_all_deferred()

    return symbolic_build


def _arguments_of_worker(
    name: str, bound: inspect.BoundArguments, strategy: Strategy
) -> dict[str, Any]:
    """Returns the arguments of a call for this worker: only the leader prints and writes."""
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    del arguments["self"]
    arguments.update(arguments.pop("kwargs", {}))
    if name.endswith("_on_batch"):
        given = [arguments.get(part) for part in ("x", "y", "sample_weight")]
        comparison_of(bound.arguments["self"]).add(given)
    if "verbose" in arguments and not is_leader(strategy):
        arguments["verbose"] = 0
    callbacks = arguments.get("callbacks", ())
    if "callbacks" in arguments and not isinstance(callbacks, keras.callbacks.CallbackList):
        trains = "epochs" in arguments
        given = keras.tree.flatten(callbacks) if callbacks else []
        arguments["callbacks"] = callbacks_of_worker(given, strategy, trains=trains)
    return arguments


def _making(
    original: Callable[..., Any],
    attribute: str,
    make: Callable[[Any, Strategy], StepFunction | WorkerSteps | ChiefSteps],
) -> Callable[..., Any]:
    @functools.wraps(original)
    def make_function(self: KerasModel, force: bool = False) -> Any:
        call = running_call()
        is_running = call is not None and call.model is self
        strategy = call.strategy if call and is_running else strategy_of_model(self)
        if strategy is None:
            return original(self, force)
        made = getattr(self, attribute)
        if force or made is None or not made.fits():
            setattr(self, attribute, make(self, strategy))
        return getattr(self, attribute)

    return make_function


def _taking_state(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_state(self: KerasModel, purge_model_variables: bool = False, **wanted: bool) -> Any:
        strategy = strategy_of_model(self)
        if strategy is None:
            return original(self, purge_model_variables=purge_model_variables, **wanted)
        parts = tuple(part for part in TRAIN_PARTS if wanted.get(part))
        if is_on_parameter_servers(strategy):
            return tuple(() for _ in parts)  # it stays on the servers
        group = strategy.replica_group
        trains = parts == TRAIN_PARTS and not keeps_state(group)
        return take_state(self, parts, group, donate=trains)

    return get_state


def _putting_back_state(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def sync_state(self: KerasModel) -> None:
        strategy = strategy_of_model(self)
        if strategy is None:
            original(self)
        elif is_on_parameter_servers(strategy):
            finish_steps(self)
        else:
            return_state(self)

    return sync_state


def _train_function(model: KerasModel, strategy: Strategy) -> StepFunction | WorkerSteps:
    if is_on_parameter_servers(strategy):
        return WorkerSteps(model, strategy)
    options = strategy.extended.gradient_options
    if options is not None and options.dtype is not None and strategy.replica_group.size > 1:
        # In one partitioned program its gradients are sums like any others, such as those of
        # BatchNormalization, and cannot be reduced in another dtype.
        raise UnsupportedError(
            "fit and train_on_batch of Keras reduce gradients in their own dtype, got "
            f"CommunicationOptions(dtype={options.dtype!r}). Leave dtype out, or write the step with "
            "strategy.run and optimizer.apply, which reduce gradients in that dtype."
        )
    return StepFunction(model, _step(model, "train_step", TRAIN_PARTS), TRAIN_PARTS, strategy)


def _test_function(model: KerasModel, strategy: Strategy) -> StepFunction | ChiefSteps:
    if is_on_parameter_servers(strategy):
        return ChiefSteps(model, "test_step", strategy)
    return StepFunction(model, _step(model, "test_step", TEST_PARTS), TEST_PARTS, strategy)


def _predict_function(model: KerasModel, strategy: Strategy) -> StepFunction | ChiefSteps:
    if is_on_parameter_servers(strategy):
        return ChiefSteps(model, "predict_step", strategy)
    if takes_data(model, "predict_step"):
        step = functional_step(model, "predict_step", PREDICT_PARTS)
        return StepFunction(model, step, PREDICT_PARTS, strategy, returns_rows=True)

    def predict_step(state: PyTree, batch: PyTree) -> Any:
        outputs, non_trainable_variables = model.predict_step(state, batch)
        return outputs, (state[0], non_trainable_variables)

    return StepFunction(model, predict_step, PREDICT_PARTS, strategy, returns_rows=True)


def _step(model: KerasModel, name: str, parts: tuple[str, ...]) -> Callable[..., Any]:
    return functional_step(model, name, parts) if takes_data(model, name) else getattr(model, name)


def _jit_step(function: Callable[..., Any], **options: Argument) -> Callable[..., Any]:
    """Compiles a step, which takes and donates a state, with random keys as another argument."""
    if "donate_argnums" not in options:
        return jit(function, **options)
    keyed = KeyedStep(function)
    compiled = jit(keyed.trace, **options)
    return lambda state, batch: keyed.run(lambda keys: compiled(state, batch, keys))


def _data_adapter_of(
    x: PyTree,
    y: PyTree = None,
    sample_weight: PyTree = None,
    batch_size: int | None = None,
    steps_per_epoch: int | None = None,
    shuffle: Argument = False,
    class_weight: Argument = None,
) -> Any:
    """Returns the data adapter of Keras; its batches are placed on the replicas under a strategy."""
    call = running_call()
    strategy = None if call is None else call.strategy
    if strategy is not None and is_on_parameter_servers(strategy):
        others = (y, sample_weight, class_weight)
        worker_data = worker_data_of(x, strategy, steps_per_epoch, others)
        if worker_data is not None:
            return worker_data
    if isinstance(x, DatasetCreator):
        if steps_per_epoch is None:
            raise InvalidArgumentError(
                "A DatasetCreator needs a number of batches, because its datasets may be infinite. Pass "
                "fit(..., steps_per_epoch=...), evaluate(..., steps=...) or validation_steps=...."
            )
        x = x.create(strategy)
    if is_dataset(x):
        adapter = DatasetAdapter(x, y, sample_weight, class_weight, steps_per_epoch, strategy)
    else:
        adapter = data_adapter_of(
            x, y, sample_weight, batch_size, steps_per_epoch, shuffle, class_weight
        )
    if call is None and isinstance(x, DistributedDataset):
        raise InvalidArgumentError(
            "A distributed dataset needs a model of the strategy that distributed it, got a model "
            "without a strategy. Create and compile it inside `with strategy.scope():`."
        )
    if call is None or isinstance(adapter, PlacedData):
        return adapter
    if is_on_parameter_servers(strategy):
        return ChiefBatches(adapter, call.strategy)
    return PlacedData(adapter, call.strategy, divide=call.compiles)


def _distribute_data(batch: PyTree, *args: Argument) -> Any:
    """Places a batch on the devices; on the replicas under a strategy."""
    call = running_call()
    if call is None or args:
        return distribute_data(batch, *args)
    return place_batch(batch, call.strategy, divide=call.compiles)
