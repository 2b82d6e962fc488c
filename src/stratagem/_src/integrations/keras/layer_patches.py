"""Patches of Keras layers and seed generators, so that they work in replicas and compiled functions."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax
import keras

from stratagem._src.core.errors import ContextError
from stratagem._src.core.types import Leaf, PyTree
from stratagem._src.core.weak_identity_map import WeakIdentityMap
from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras.checkpoints import restore_deferred
from stratagem._src.integrations.keras.host_layer import has_strings, run_on_host
from stratagem._src.integrations.keras.keras_internals import (
    ADD_LOSS,
    CALL_LAYER,
    CLEAR_LOSSES,
    MAYBE_BUILD,
    NEXT_SEED,
    OWN_LOSSES,
    SET_RANDOM_SEED,
    Argument,
    KerasLayer,
    KerasObject,
    current_path,
    in_stateless_scope,
    mask_of,
    set_mask,
)
from stratagem._src.integrations.keras.model_strategy import adopt_new
from stratagem._src.integrations.keras.owner_scope import creation_strategy, owner_of, owner_scope
from stratagem._src.integrations.keras.plain_variables import as_placed_variable
from stratagem._src.integrations.keras.replicas import eager_replica_context, multi_replica_context
from stratagem._src.jax_compat.tracing import is_tracer, under_jit
from stratagem._src.mesh.logical_devices import PartitionedGroup
from stratagem._src.mesh.sharding_rules import ShardingRules
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.central_storage import CentralExtended
from stratagem._src.strategies.constrain import layout_group
from stratagem._src.strategies.parameter_server import ParameterServerExtended
from stratagem._src.tensorflow_api.random_seeds import set_seed
from stratagem._src.variables import frames

__all__ = [
    "add_loss",
    "call_layer",
    "clear_losses",
    "maybe_build",
    "next_seed",
    "own_losses",
    "set_random_seed",
]


def maybe_build(layer: KerasLayer, call_spec: KerasObject) -> None:
    """Replaces ``Layer._maybe_build``, which Keras calls before each ``call``."""
    _build(layer, call_spec)
    restore_deferred(layer)


def _build(layer: KerasLayer, call_spec: KerasObject) -> None:
    if layer.built:
        MAYBE_BUILD(layer, call_spec)
        return
    strategy, replica = creation_strategy(layer), eager_replica_context()
    if strategy is not None:
        _check_creates_variables(layer, strategy)
        adopt_new(layer, strategy)
    if replica is None:
        with owner_scope(layer):
            MAYBE_BUILD(layer, call_spec)
        return
    # Every replica thread gets here before the layer is built; one of them builds it for all.
    replica.merge_call(lambda _: MAYBE_BUILD(layer, call_spec))


def _check_creates_variables(layer: KerasLayer, strategy: Strategy) -> None:
    extended = strategy.extended
    if not isinstance(extended, ParameterServerExtended) or not extended.is_on_worker:
        return
    if type(layer).build is not keras.Layer.build:
        raise ContextError(
            f"A Keras model or layer must be built before a function that uses it is sent to workers, "
            "because all of them share its variables on the servers, but the "
            f"{type(layer).__name__} {layer.name!r} is not. Begin the model with keras.Input(...), or call "
            "it once on example inputs in the coordinator, before the function is scheduled."
        )


def call_layer(layer: KerasLayer, *args: Argument, **kwargs: Argument) -> Any:
    """Replaces ``Layer.__call__``: moves arrays that are committed to other devices to the weights.

    A result of another model, or of ``jax.device_put``, is on one device; mirrored weights are on several,
    and JAX refuses to compute with both. In a replica, arrays and weights are on the replica's device.
    A functional model of strings, made of layers such as ``StringLookup``, runs on the host.
    """
    if len(args) > 1 and isinstance(args[1], bool):
        # `layer(x, True)`, for Keras 2: Keras 3 takes flags such as `training` by name only.
        names = list(inspect.signature(layer.call).parameters)
        kwargs = {**dict(zip(names[1:], args[1:], strict=False)), **kwargs}
        args = args[:1]
    if isinstance(layer, keras.Model) and has_strings((args, kwargs)):
        return run_on_host(layer, *args, **kwargs)
    if any(map(_is_committed, jax.tree.leaves((args, kwargs)))):
        owner = None if under_jit() or multi_replica_context() is not None else owner_of(layer)
        if owner is not None:
            place = _place_of_weights(owner)
            args, kwargs = jax.tree.map(lambda leaf: _move_to(leaf, place), (args, kwargs))
    group = layout_group()
    if group is None or group.rules is None:
        return CALL_LAYER(layer, *args, **kwargs)
    path = f"{current_path()}/{layer.name}/output".removeprefix("/")
    return _laid_out_output(CALL_LAYER(layer, *args, **kwargs), path, group, group.rules)


def _laid_out_output(
    outputs: PyTree, path: str, group: PartitionedGroup, rules: ShardingRules
) -> Any:
    """Returns what a layer returns with the layout that the rules have for it, as under Keras's own."""
    layout = rules.output_layout(path)
    if layout is None:
        return outputs

    def lay_out(leaf: Leaf) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        laid_out, mask = group.constrain_layout(leaf, layout, f"the output {path!r}"), mask_of(leaf)
        if mask is not None and laid_out is not leaf:
            set_mask(laid_out, mask)
        return laid_out

    return jax.tree.map(lay_out, outputs)


def _is_committed(leaf: Leaf) -> bool:
    return isinstance(leaf, jax.Array) and not is_tracer(leaf) and leaf.committed


def _place_of_weights(strategy: Strategy) -> jax.sharding.Sharding:
    group, extended = strategy.replica_group, strategy.extended
    # A stateless scope has the weights on all devices, also those of a central variable.
    if isinstance(extended, CentralExtended) and not in_stateless_scope():
        return jax.sharding.SingleDeviceSharding(extended.parameter_device)
    # Each of several processes computes alone, with its local copy of the weights. Values from parameter
    # servers are put on one device.
    if group.spans_processes or (
        isinstance(extended, ParameterServerExtended) and not in_stateless_scope()
    ):
        return jax.sharding.SingleDeviceSharding(group.local_devices[0])
    return group.replicated


def _move_to(leaf: Leaf, place: jax.sharding.Sharding) -> Any:
    if not _is_committed(leaf) or leaf.sharding.device_set == place.device_set:
        return leaf
    moved, mask = jax.device_put(leaf, place), mask_of(leaf)
    if mask is not None:
        set_mask(moved, jax.device_put(mask, place))
    return moved


# Maps a trace or replica to the losses of its layers. Weak keys: the losses, which may be tracers, must not
# outlive the trace or replica.
_added: WeakIdentityMap[Any, WeakIdentityMap[Any, list[Any]]]
_added = WeakIdentityMap()


def add_loss(layer: KerasLayer, loss: PyTree) -> None:
    """Replaces ``Layer.add_loss``: losses are separate for each replica and each trace."""
    added = _added_here()
    if added is None:
        ADD_LOSS(layer, loss)
    else:
        added.setdefault(layer, []).extend(keras.tree.flatten(loss))


def own_losses(layer: KerasLayer) -> list[Any]:
    """Replaces ``Layer._get_own_losses``."""
    added = _added_here()
    return OWN_LOSSES(layer) if added is None else list(added.get(layer, ()))


def clear_losses(layer: KerasLayer) -> None:
    """Replaces ``Layer._clear_losses``."""
    added = _added_here()
    if added is None:
        CLEAR_LOSSES(layer)
        return
    for part in layer._flatten_layers():
        added.pop(part, None)


def _added_here() -> WeakIdentityMap[Any, list[Any]] | None:
    if in_stateless_scope():
        return None
    place: Any = frames.current_frame()
    if place is None and context.has_strategy():
        place = context.get_replica_context()
    if place is None:
        return None
    return _added.setdefault(place, WeakIdentityMap())


@functools.wraps(SET_RANDOM_SEED)
def set_random_seed(seed: int) -> None:
    """Replaces ``keras.utils.set_random_seed``: also sets the seed of ``stratagem.random``."""
    SET_RANDOM_SEED(seed)
    set_seed(seed)


def next_seed(generator: KerasObject, ordered: bool = True) -> Any:
    """Replaces ``SeedGenerator.next``: every replica gets its own stream, the same in each run."""
    replica = multi_replica_context()
    if replica is None or in_stateless_scope():
        return NEXT_SEED(generator, ordered)
    with keras.StatelessScope([(generator.state, generator.state.value)]) as scope:
        seed = NEXT_SEED(generator, ordered)
    # All replicas advance the counter equally; the replica id is folded into the key.
    as_placed_variable(generator.state).assign_equal(scope.get_current_value(generator.state))
    key = jax.random.wrap_key_data(seed, impl="threefry2x32")
    return jax.random.key_data(jax.random.fold_in(key, replica.replica_id_in_sync_group))
