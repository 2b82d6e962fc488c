"""Training steps, written with this library and by hand, lowered for devices that are only described."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import stratagem as sg

REPLICATED, ROWS = PartitionSpec(), PartitionSpec("replica")
ADAM = optax.adam(1e-3)

Params = dict[str, Any]
Loss = Callable[[Params, Any], Any]


# --- models -----------------------------------------------------------------------------------------


def fifty_layers() -> Params:
    return {f"w{i:02}": np.full((128, 128), 0.01, np.float32) for i in range(50)}


def fifty_layers_loss(params: Params, x: Any) -> Any:
    for name in sorted(params):
        x = jnp.tanh(x @ params[name])
    return jnp.mean(x**2)


LAYERS, WIDTH, HEADS = 4, 256, 4


def transformer() -> Params:
    shapes = {
        "qkv": (LAYERS, WIDTH, 3 * WIDTH),
        "out": (LAYERS, WIDTH, WIDTH),
        "up": (LAYERS, WIDTH, 4 * WIDTH),
        "down": (LAYERS, 4 * WIDTH, WIDTH),
    }
    return {name: np.full(shape, 0.01, np.float32) for name, shape in shapes.items()}


def unstacked(params: Params) -> Params:
    """Returns a weight for each layer."""
    return {f"{k}{i}": v[i] for k, v in params.items() for i in range(LAYERS)}


def _layer(weights: Params, x: Any) -> Any:
    def split(y: Any) -> Any:
        return y.reshape(*y.shape[:-1], HEADS, -1)

    weights = {name: weight.astype(jnp.bfloat16) for name, weight in weights.items()}
    q, k, v = map(split, jnp.split(_normed(x) @ weights["qkv"], 3, axis=-1))
    attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + attended.reshape(x.shape) @ weights["out"]
    return x + jax.nn.gelu(_normed(x) @ weights["up"]) @ weights["down"]


def _normed(x: Any) -> Any:
    return (x / jnp.sqrt(jnp.mean(x.astype(jnp.float32) ** 2, -1, keepdims=True) + 1e-6)).astype(
        x.dtype
    )


def _mean_square(x: Any) -> Any:
    return jnp.mean(x.astype(jnp.float32) ** 2)


def unrolled_loss(params: Params, x: Any) -> Any:
    x = x.astype(jnp.bfloat16)
    for i in range(LAYERS):
        x = _layer({name: params[f"{name}{i}"] for name in ("qkv", "out", "up", "down")}, x)
    return _mean_square(x)


def scanned_loss(params: Params, x: Any) -> Any:
    def body(x: Any, weights: Params) -> Any:
        return _layer(weights, x), None

    x, _ = jax.lax.scan(body, x.astype(jnp.bfloat16), params)
    return _mean_square(x)


def indexed_scan_loss(params: Params, x: Any) -> Any:
    """Reads one layer at a time, and reads it again for the gradient."""

    @jax.checkpoint
    def body(x: Any, i: Any) -> Any:
        return _layer({name: stack[i] for name, stack in params.items()}, x), None

    x, _ = jax.lax.scan(body, x.astype(jnp.bfloat16), jnp.arange(LAYERS))
    return _mean_square(x)


# --- with this library --------------------------------------------------------------------------------


def ours(
    devices: Sequence[jax.Device],
    params: Params,
    loss: Loss,
    row: tuple[int, ...],
    *,
    sharded: bool = False,
    shard_state: bool = False,
    whole_reads: bool = True,
    rules: Any = None,
    wire: str | None = None,
    **options: Any,
) -> Any:
    """Returns the lowered step of this library.

    Args:
        devices: The devices.
        params: The initial values.
        loss: The loss of some rows.
        row: The shape of an example; there are eight for each device.
        sharded: Whether variables are fully sharded.
        shard_state: Whether only the optimizer state is.
        whole_reads: Whether a read takes a whole variable, and not one layer of it.
        rules: Sharding rules.
        wire: The dtype in which gradients are sent; default: their own.
        **options: More arguments of ``sg.function``.
    """
    strategy = sg.distribute.MirroredStrategy(devices, sharding_rules=rules)
    with strategy.scope():
        if sharded:
            with sg.distribute.experimental.FullySharded(min_size=1024):
                variables = {name: sg.Variable(value) for name, value in params.items()}
        else:
            variables = {name: sg.Variable(value, name=name) for name, value in params.items()}
        optimizer = sg.train.Optimizer(ADAM, shard_state=shard_state, gradient_reduction="mean")
    held = list(variables.values())

    def replica(x: Any) -> Any:
        def own_loss() -> Any:
            if not whole_reads:
                return loss(variables, x)
            return loss({name: v.read_value() for name, v in variables.items()}, x)

        value, gradients = sg.value_and_grad(own_loss, held)()
        if wire is None:
            optimizer.apply(gradients, held)
        else:
            sent = sg.distribute.experimental.CommunicationOptions(dtype=wire)
            gradients = sg.distribute.get_replica_context().all_reduce("MEAN", gradients, sent)
            pairs = zip(gradients, held, strict=True)
            optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)
        return value

    @sg.function(**options)
    def step(x: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(replica, args=(x,)))

    per_replica = 8 * len(devices) // strategy.num_replicas_in_sync
    rows = strategy.experimental_distribute_values_from_function(
        lambda _: np.zeros((per_replica, *row), np.float32)
    )
    return step.lower(rows)


# --- by hand ------------------------------------------------------------------------------------------


def _lower(
    mesh: Mesh, step: Callable[..., Any], params: Params, row: tuple[int, ...], place: Any
) -> Any:
    def described(array: Any, spec: Any) -> Any:
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(mesh, spec))

    state = jax.eval_shape(ADAM.init, params)
    spec_of = {value.shape: place(value) for value in params.values()}
    args = jax.tree.map(lambda a: described(a, spec_of.get(a.shape, REPLICATED)), (params, state))
    rows = jax.ShapeDtypeStruct(
        (8 * mesh.size, *row), np.float32, sharding=NamedSharding(mesh, ROWS)
    )
    shardings = (*jax.tree.map(lambda a: a.sharding, args), NamedSharding(mesh, REPLICATED))
    jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=shardings)
    return jitted.lower(*args, rows)


def by_shard_map(
    devices: Sequence[jax.Device], params: Params, loss: Loss, row: tuple[int, ...]
) -> Any:
    """Returns the lowered step of replicated parameters, written with ``shard_map``."""
    mesh = Mesh(np.array(devices), ("replica",))

    def replica(params: Params, state: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x)
        value, gradients = jax.lax.pmean((value, gradients), "replica")
        updates, state = ADAM.update(gradients, state)
        return optax.apply_updates(params, updates), state, value

    step = jax.shard_map(
        replica,
        mesh=mesh,
        in_specs=(REPLICATED, REPLICATED, ROWS),
        out_specs=REPLICATED,
        check_vma=False,
    )
    return _lower(mesh, step, params, row, lambda _: REPLICATED)


def by_gspmd(
    devices: Sequence[jax.Device],
    params: Params,
    loss: Loss,
    row: tuple[int, ...],
    place: Callable[[Any], Any] = lambda _: REPLICATED,
    axes: dict[str, int] | None = None,
) -> Any:
    """Returns the lowered step of the global batch, which XLA partitions.

    Args:
        devices: The devices.
        params: The initial values.
        loss: The loss of some rows.
        row: The shape of an example.
        place: Returns the layout of a parameter.
        axes: The axes of a replica's devices; the first shards the batch too.
    """
    sizes = axes or {}
    mesh = Mesh(np.array(devices).reshape(-1, *sizes.values()), ("replica", *sizes))
    batch = NamedSharding(mesh, PartitionSpec(("replica", *list(sizes)[:1])))

    def step(params: Params, state: Any, x: Any) -> Any:
        x = jax.lax.with_sharding_constraint(x, batch)
        value, gradients = jax.value_and_grad(loss)(params, x)
        updates, state = ADAM.update(gradients, state)
        return optax.apply_updates(params, updates), state, value

    return _lower(mesh, step, params, row, place)
