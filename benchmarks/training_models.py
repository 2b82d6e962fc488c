"""The networks of ``training.py`` in plain ``jax.numpy``, and the data that every library trains on.

Each is a function of a flat list of arrays, so that it serves arrays and variables alike. This module
imports JAX only where a network is computed: the scripts of other libraries take shapes and data from it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

LEARNING_RATE = 1e-3
CHANNELS = (16, 32, 64)
GROUPS = 8
CONTEXT, DIMS, HEADS, BLOCKS, WORDS = 32, 64, 4, 2, 256
SIDE, PATCH = 32, 4
PATCHES = (SIDE // PATCH) ** 2
MOMENTS, FEATURES, UNITS = 32, 32, 64
ROWS = (20_000, 5_000)


class Task(NamedTuple):
    """A network's data and batch.

    Attributes:
        examples: How many examples there are.
        batch: The global batch, whatever the number of replicas.
    """

    examples: int
    batch: int


TASKS = {
    "digits": Task(8192, 128),
    "resnet": Task(1024, 64),
    "transformer": Task(2048, 64),
    "vit": Task(1024, 64),
    "gru": Task(2048, 64),
    "recommender": Task(16384, 256),
}


def make_data(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns all examples of a task, and their labels."""
    random, count = np.random.default_rng(0), TASKS[name].examples
    if name == "digits":
        return random.random((count, 64), np.float32), random.integers(0, 10, count, np.int32)
    if name in ("resnet", "vit"):
        images = random.random((count, SIDE, SIDE, 3), np.float32)
        return images, random.integers(0, 10, count, np.int32)
    if name == "gru":
        series = random.random((count, MOMENTS, FEATURES), np.float32)
        return series, random.integers(0, 10, count, np.int32)
    if name == "recommender":
        pairs = np.stack([random.integers(0, rows, count, np.int32) for rows in ROWS], 1)
        return pairs, random.integers(0, 2, count, np.int32)
    words = random.integers(0, WORDS, (count, CONTEXT + 1), np.int32)
    return words[:, :-1].copy(), words[:, 1:].copy()


def make_parameters(name: str) -> list[np.ndarray]:
    """Returns the first values of a network's parameters."""
    random = np.random.default_rng(1)

    def scaled(*shape: int) -> np.ndarray:
        rows = int(np.prod(shape[:-1]))
        return (random.normal(size=shape) * (2 / rows) ** 0.5).astype(np.float32)

    def ones(size: int) -> np.ndarray:
        return np.ones(size, np.float32)

    def zeros(size: int) -> np.ndarray:
        return np.zeros(size, np.float32)

    if name == "digits":
        sizes = [(64, 128), (128, 64), (64, 10)]
        return [array for n, m in sizes for array in (scaled(n, m), zeros(m))]
    if name == "resnet":
        parameters, before = [scaled(3, 3, 3, CHANNELS[0])], CHANNELS[0]
        for channels in CHANNELS:
            parameters += [ones(before), zeros(before), scaled(3, 3, before, channels)]
            parameters += [ones(channels), zeros(channels), scaled(3, 3, channels, channels)]
            parameters += [scaled(1, 1, before, channels)]
            before = channels
        return [*parameters, scaled(before, 10), zeros(10)]
    if name == "gru":
        kernels = [scaled(FEATURES, 3 * UNITS), scaled(UNITS, 3 * UNITS)]
        return [*kernels, zeros(3 * UNITS), zeros(3 * UNITS), scaled(UNITS, 10), zeros(10)]
    if name == "recommender":
        tables = [scaled(rows, DIMS) for rows in ROWS]
        return [*tables, scaled(2 * DIMS, DIMS), zeros(DIMS), scaled(DIMS, 2), zeros(2)]
    parameters = [scaled(WORDS, DIMS), scaled(CONTEXT, DIMS)]
    if name == "vit":
        parameters = [scaled(PATCH * PATCH * 3, DIMS), scaled(PATCHES, DIMS)]
    for _ in range(BLOCKS):
        parameters += [ones(DIMS), scaled(DIMS, 3 * DIMS), scaled(DIMS, DIMS)]
        parameters += [ones(DIMS), scaled(DIMS, 4 * DIMS), scaled(4 * DIMS, DIMS)]
    return [*parameters, ones(DIMS), scaled(DIMS, 10 if name == "vit" else WORDS)]


def losses(name: str, parameters: list[Any], inputs: Any, labels: Any) -> Any:
    """Returns the loss of each example."""
    import jax.numpy as jnp
    import optax

    networks = {
        "digits": _digits,
        "resnet": _resnet,
        "transformer": _transformer,
        "vit": _vit,
        "gru": _gru,
        "recommender": _recommender,
    }
    scores = networks[name](list(parameters), inputs)
    each = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
    return jnp.mean(each, axis=tuple(range(1, each.ndim)))


def _digits(parameters: list[Any], x: Any) -> Any:
    import jax

    for place in range(0, len(parameters) - 2, 2):
        x = jax.nn.relu(x @ parameters[place] + parameters[place + 1])
    return x @ parameters[-2] + parameters[-1]


def _resnet(parameters: list[Any], x: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def convolved(x: Any, kernel: Any, stride: int = 1) -> Any:
        return jax.lax.conv_general_dilated(
            x,
            jnp.asarray(kernel),
            (stride, stride),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    def normalized(x: Any, scale: Any, offset: Any) -> Any:
        grouped = x.reshape(*x.shape[:3], GROUPS, -1)
        mean = grouped.mean((1, 2, 4), keepdims=True)
        variance = grouped.var((1, 2, 4), keepdims=True)
        grouped = (grouped - mean) * jax.lax.rsqrt(variance + 1e-5)
        return grouped.reshape(x.shape) * scale + offset

    x = convolved(x, parameters[0])
    for place, stride in zip(range(1, len(parameters) - 2, 7), (1, 2, 2), strict=True):
        scale, offset, first, scale2, offset2, second, shortcut = parameters[place : place + 7]
        y = convolved(jax.nn.relu(normalized(x, scale, offset)), first, stride)
        y = convolved(jax.nn.relu(normalized(y, scale2, offset2)), second)
        x = convolved(x, shortcut, stride) + y
    return x.mean((1, 2)) @ parameters[-2] + parameters[-1]


def _transformer(parameters: list[Any], words: Any) -> Any:
    import jax.numpy as jnp

    x = jnp.asarray(parameters[0])[words] + parameters[1]
    return _attention(parameters[2:-1], x, is_causal=True) @ parameters[-1]


def _vit(parameters: list[Any], images: Any) -> Any:
    import jax.numpy as jnp

    patches = images.reshape(-1, SIDE // PATCH, PATCH, SIDE // PATCH, PATCH * 3)
    patches = jnp.swapaxes(patches, 2, 3).reshape(-1, PATCHES, PATCH * PATCH * 3)
    x = patches @ parameters[0] + parameters[1]
    return _attention(parameters[2:-1], x, is_causal=False).mean(1) @ parameters[-1]


def _attention(parameters: list[Any], x: Any, *, is_causal: bool) -> Any:
    """Returns what the blocks of a transformer make of ``x``, normalized."""
    import jax
    import jax.numpy as jnp

    def normalized(x: Any, scale: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6) * scale

    batch, length, _ = x.shape
    for place in range(0, len(parameters) - 1, 6):
        before, joint, attended, before_hidden, hidden, out = parameters[place : place + 6]
        heads = (normalized(x, before) @ joint).reshape(batch, length, 3, HEADS, DIMS // HEADS)
        queries, keys, values = (heads[:, :, i] for i in range(3))
        y = jax.nn.dot_product_attention(queries, keys, values, is_causal=is_causal)
        x = x + y.reshape(batch, length, DIMS) @ attended
        x = x + jax.nn.gelu(normalized(x, before_hidden) @ hidden) @ out
    return normalized(x, parameters[-1])


def _gru(parameters: list[Any], x: Any) -> Any:
    import jax
    import jax.numpy as jnp

    kernel, recurrent, offset, recurrent_offset, out, out_offset = map(jnp.asarray, parameters)

    def step(state: Any, given: Any) -> Any:
        reset, update, new = jnp.split(given, 3, -1)
        reset2, update2, new2 = jnp.split(state @ recurrent + recurrent_offset, 3, -1)
        reset, update = jax.nn.sigmoid(reset + reset2), jax.nn.sigmoid(update + update2)
        new = jnp.tanh(new + reset * new2)
        return new + update * (state - new), None

    given = jnp.swapaxes(x, 0, 1) @ kernel + offset
    state, _ = jax.lax.scan(step, jnp.zeros((x.shape[0], UNITS)), given)
    return state @ out + out_offset


def _recommender(parameters: list[Any], pairs: Any) -> Any:
    import jax
    import jax.numpy as jnp

    users, items, kernel, offset, out, out_offset = map(jnp.asarray, parameters)
    x = jnp.concatenate([users[pairs[:, 0]], items[pairs[:, 1]]], -1)
    return jax.nn.relu(x @ kernel + offset) @ out + out_offset
