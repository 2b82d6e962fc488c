"""Sends Keras objects to workers: their attributes, with variables as handles of variables on servers.

Keras itself pickles a model as a saved model, with all weights, and cannot pickle a layer or optimizer.
"""

from __future__ import annotations

import threading
import types
import weakref
from typing import Any

from stratagem._src.core.types import Picklable
from stratagem._src.integrations.keras.keras_imports import import_keras_module, keras_attribute
from stratagem._src.integrations.keras.keras_internals import (
    OPTIMIZER,
    SAVEABLE,
    TRACKED,
    TRACKER,
    KerasObject,
    KerasVariable,
)
from stratagem._src.integrations.keras.optimizer_building import build_carried_optimizer
from stratagem._src.integrations.keras.owner_scope import creation_strategy, record_creation
from stratagem._src.integrations.keras.placed_variable import PlacedVariable
from stratagem._src.integrations.keras.remote_apply import is_remote, server_step_of
from stratagem._src.integrations.keras.server_step import decays_of, rekey
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.parameter_server.protocol.serialization import register_reducer
from stratagem._src.strategies.parameter_server import ParameterServerStrategy

__all__ = ["install_pickling"]

_PACKAGE = __name__.rpartition(".")[0] + "."

# What a model keeps of its calls in this process.
_OF_THIS_PROCESS = {
    "train_function": None,
    "test_function": None,
    "predict_function": None,
    "history": None,
    "_jax_state": None,
    "_eval_epoch_iterator": None,
    "_saved_model_inputs_spec": None,
}


def install_pickling() -> None:
    """Makes functions that are sent to workers carry Keras objects."""
    register_reducer(_reduce, build_carried_optimizer)


def _reduce(obj: Picklable) -> Any:
    if isinstance(obj, types.ModuleType):
        if obj.__name__.partition(".")[0] == "keras":
            return import_keras_module, (obj.__name__,)
        return NotImplemented
    if isinstance(obj, (type, types.FunctionType)):
        return _reduce_name(obj)
    if isinstance(obj, PlacedVariable) and is_remote(obj):
        left_out = ("twin", "taken", "_known", "strategy", "_initializer")
        content = {k: v for k, v in obj.__dict__.items() if k not in left_out}
        return _receive_variable, (obj.own_twin(), obj.strategy, content)
    if isinstance(obj, SAVEABLE):
        strategy = None if isinstance(obj, OPTIMIZER) else creation_strategy(obj)
        if not isinstance(strategy, ParameterServerStrategy):
            strategy = None
        return _empty, (type(obj),), (_content(obj), strategy), None, None, _fill_saveable
    if isinstance(obj, TRACKER):
        content = {**obj.__dict__, "stored_ids": {name: set() for name in obj.config}}
        return _empty, (type(obj),), content, None, None, _fill
    if isinstance(obj, TRACKED):
        items = dict(obj) if isinstance(obj, dict) else list(obj)
        return _empty, (type(obj),), (obj.tracker, items), None, None, _fill_collection
    return NotImplemented


def _reduce_name(obj: Any) -> Any:
    """Refers to a class or function of Keras, or of this package, by name.

    The worker then loads Keras with the JAX backend first.
    """
    module, name = obj.__module__ or "", obj.__qualname__
    needs_keras = module.startswith(("keras.", _PACKAGE)) and module != keras_attribute.__module__
    if not needs_keras or "<" in name:
        return NotImplemented
    try:
        found = keras_attribute(module, name)
    except AttributeError:
        return (
            NotImplemented  # a named tuple of a class has the name of no attribute: sent by value
        )
    return (keras_attribute, (module, name)) if found is obj else NotImplemented


def _content(obj: KerasObject) -> dict[str, Any]:
    content = dict(obj.__dict__)
    for name, value in _OF_THIS_PROCESS.items():
        if name in content:
            content[name] = value
    if isinstance(obj, OPTIMIZER) and obj.built and any(map(is_remote, obj.variables)):
        server_step_of(obj)  # made once, so that all workers send the same one
        content = {**obj.__dict__, "_exclude_from_weight_decay_cache": decays_of(obj)}
    return content


def _empty(kind: type) -> Any:
    # Collections of Keras track what is added to them, and have no tracker yet.
    base = next((b for b in (list, dict, set) if issubclass(kind, b)), object)
    return base.__new__(kind)


def _fill_saveable(
    obj: KerasObject, state: tuple[dict[str, Any], ParameterServerStrategy | None]
) -> None:
    content, strategy = state
    _fill(obj, content)
    if strategy is not None:
        record_creation(obj, strategy)


def _fill(obj: KerasObject, content: dict[str, Any]) -> None:
    obj.__dict__.update(content)
    if isinstance(obj, OPTIMIZER):
        decays = content.get("_exclude_from_weight_decay_cache")
        if isinstance(decays, list):
            rekey(obj, decays)


def _fill_collection(collection: Any, content: tuple[Any, Any]) -> None:
    tracker, items = content
    if isinstance(collection, dict):
        dict.update(collection, items)
    elif isinstance(collection, set):
        set.update(collection, items)
    else:
        list.extend(collection, items)
    collection.tracker = tracker


_received: weakref.WeakValueDictionary[tuple[str, str], Any] = weakref.WeakValueDictionary()
_received_lock = threading.RLock()  # reentrant: a signal handler may interrupt its holder


def _receive_variable(
    twin: RemoteVariable, strategy: ParameterServerStrategy, content: dict[str, Any]
) -> KerasVariable:
    """Returns this process's Keras variable of a variable on servers: optimizers find it by identity."""
    key = (twin.id, strategy._identity)
    with _received_lock:
        known = _received.get(key)
        if known is None:
            known = object.__new__(PlacedVariable)
            known.__dict__.update(content)
            known.strategy, known.twin = strategy, twin
            known.__dict__["_initializer"] = None
            _received[key] = known
        return known
