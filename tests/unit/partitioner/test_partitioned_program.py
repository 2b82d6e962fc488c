"""A program that is divided over replicas computes what it computes on one device."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stratagem as sg
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.partitioner.partitioned_program import partition

ROWS = 8


@pytest.fixture(params=[pytest.param(2, marks=pytest.mark.slow), 4])
def group(request):
    return ReplicaGroup.of(jax.devices()[: request.param])


def uniform(*shape, seed=0):
    return np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(np.float32)


def divided(function, group, state, batch, split=True):
    """Returns what a function returns, and how often the replicas exchange something for it."""
    examples = jax.eval_shape(lambda *arrays: arrays, state, batch)
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*examples)
    num_state = len(jax.tree.leaves(state))
    flags = [False] * num_state + [split] * (len(jax.tree.leaves(examples)) - num_state)
    program = jax.jit(partition(closed, flags, group))
    placed = [
        jax.device_put(leaf, group.sharded if is_split else group.replicated)
        for leaf, is_split in zip(jax.tree.leaves((state, batch)), flags, strict=True)
    ]
    text = program.lower(*placed).as_text()
    exchanges = re.findall(r"stablehlo\.(all_reduce|all_gather|collective_permute)", text)
    results = program(*placed)
    return jax.tree.unflatten(jax.tree.structure(shapes), results), len(exchanges)


X = uniform(ROWS, 6)
IMAGES = uniform(ROWS, 8, 8, 4)
TOKENS = np.random.default_rng(1).integers(0, 10, (ROWS, 5)).astype(np.int32)
W = uniform(6, 4)

# name: function of (state, batch), state, batch, whether it can be done without any exchange
PROGRAMS = {
    "elementwise": (lambda s, x: jnp.tanh(x) * s + 1, uniform(6), X, True),
    "broadcast of rows": (lambda s, x: x[:, None, :] * s[None, :, None], uniform(3), X, True),
    "whole rows against split ones": (lambda s, x: x * s, uniform(ROWS, 6), X, True),
    "two batches": (lambda s, b: b[0] @ s + b[1], W, (X, uniform(ROWS, 4, seed=2)), True),
    "matrix product": (lambda s, x: x @ s, W, X, True),
    "product from the left": (lambda s, x: jnp.einsum("ij,bj->ib", s, x), uniform(3, 6), X, True),
    "batched product": (lambda s, x: jnp.einsum("bi,bj->bij", x, x @ s), W, X, True),
    "gram matrix of rows": (lambda s, x: x @ x.T, None, X, False),
    "sum over rows": (lambda s, x: x.sum(0), None, X, False),
    "sum over columns": (lambda s, x: x.sum(1), None, X, True),
    "maximum over rows": (lambda s, x: x.max(0), None, X, False),
    "product over rows": (lambda s, x: x.prod(0), None, X, False),
    "any over rows": (lambda s, x: (x > 1.4).any(0), None, X, False),
    "argmax of rows": (lambda s, x: x.argmax(1), None, X, True),
    "argmax over rows": (lambda s, x: x.argmax(0), None, X, False),
    "normalised over rows": (lambda s, x: (x - x.mean(0)) / x.std(0), None, X, False),
    "softmax": (lambda s, x: jax.nn.softmax(x), None, X, True),
    "cumulative": (lambda s, x: jnp.cumsum(x, 1), None, X, True),
    "cumulative over rows": (lambda s, x: jnp.cumsum(x, 0), None, X, False),
    "sort in rows": (lambda s, x: jnp.sort(x, 1), None, X, True),
    "sort over rows": (lambda s, x: jnp.sort(x, 0), None, X, False),
    "top k": (lambda s, x: lax.top_k(x, 3), None, X, True),
    "transposed": (lambda s, x: x.T * 2, None, X, True),
    "flattened images": (lambda s, x: x.reshape(ROWS, -1), None, IMAGES, True),
    "rows joined with positions": (lambda s, x: x.reshape(ROWS * 8, -1) * 2, None, IMAGES, True),
    "rows apart again": (
        lambda s, x: x.reshape(ROWS * 8, 32).reshape(ROWS, 8, 32).sum(2),
        None,
        IMAGES,
        True,
    ),
    "columns before rows": (lambda s, x: x.T.reshape(-1), None, X, False),
    "slice of columns": (lambda s, x: x[:, 1:4], None, X, True),
    "slice of rows": (lambda s, x: x[1:4], None, X, False),
    "reversed": (lambda s, x: x[:, ::-1], None, X, True),
    "padded": (lambda s, x: jnp.pad(x, ((0, 0), (1, 2))), None, X, True),
    "padded rows": (lambda s, x: jnp.pad(x, ((1, 1), (0, 0))), None, X, False),
    "joined columns": (lambda s, x: jnp.concatenate([x, x * 2, s], 1), uniform(ROWS, 2), X, True),
    "joined rows": (lambda s, x: jnp.concatenate([x, s], 0), uniform(2, 6), X, False),
    "split columns": (lambda s, x: jnp.split(x, 3, 1), None, X, True),
    "dynamic slice": (lambda s, x: lax.dynamic_slice(x, (0, s), (ROWS, 2)), np.int32(3), X, True),
    "dynamic update": (
        lambda s, x: lax.dynamic_update_slice(x, x[:, :2], (0, s)),
        np.int32(3),
        X,
        True,
    ),
    "embedding": (lambda s, t: s[t], uniform(10, 3), TOKENS, True),
    "embedding by take": (lambda s, t: jnp.take(s, t, axis=0), uniform(10, 3), TOKENS, True),
    "columns by index": (lambda s, x: x[:, s], np.array([4, 1]), X, True),
    "one of each row": (
        lambda s, b: jnp.take_along_axis(b[0], b[1], axis=1),
        None,
        (X, TOKENS % 6),
        True,
    ),
    "rows by index": (lambda s, x: x[s], np.array([4, 1]), X, False),
    "add at indices": (lambda s, t: s.at[t].add(1.0), uniform(10), TOKENS, False),
    "set at indices": (lambda s, t: s.at[t[:, 0]].set(1.0), uniform(10), TOKENS, False),
    "set columns": (lambda s, x: x.at[:, 2].set(0.0), None, X, True),
    "convolution": (
        lambda s, x: lax.conv_general_dilated(
            x, s, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
        uniform(3, 3, 4, 5),
        IMAGES,
        True,
    ),
    "pooling": (
        lambda s, x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
        None,
        IMAGES,
        True,
    ),
    "random numbers of the whole batch": (
        lambda s, x: jnp.where(jax.random.bernoulli(s, 0.5, x.shape), x, 0),
        jax.random.key(3),
        X,
        True,
    ),
    "random numbers for rows and for all": (
        lambda s, x: (lambda noise: (x * noise + 1, noise.T @ x))(jax.random.normal(s, x.shape)),
        jax.random.key(3),
        X,
        False,
    ),
    "random numbers of eight bits": (
        lambda s, x: x + jax.random.bits(s, x.shape, jnp.uint8),
        jax.random.key(3),
        X,
        True,
    ),
    "random numbers of another generator": (
        lambda s, x: x * jax.random.uniform(s, x.shape),
        jax.random.key(3, impl="rbg"),
        X,
        True,
    ),
    "random rows for each column": (
        lambda s, x: x.T * jax.random.uniform(s, (6, ROWS)) + jax.random.uniform(s, (1, ROWS)),
        jax.random.key(3),
        X,
        True,
    ),
    "one random number for each row": (
        lambda s, x: x * jax.random.uniform(s, (ROWS, 1)) + jax.random.normal(s, (1, 6)),
        jax.random.key(3),
        X,
        True,
    ),
    "random numbers that scale a sum": (
        lambda s, x: x.sum(0) * jax.random.uniform(s, (6,)),
        jax.random.key(3),
        X,
        False,
    ),
    "random order of rows": (
        lambda s, x: x * jax.random.permutation(s, ROWS)[:, None],
        jax.random.key(3),
        X,
        True,
    ),
    "random numbers alone": (
        lambda s, x: (x, jax.random.normal(s, (ROWS, 2)), 2 * jax.random.uniform(s, (ROWS,))),
        jax.random.key(3),
        X,
        True,
    ),
    "scan over columns": (
        lambda s, x: lax.scan(lambda c, xi: (jnp.tanh(c + xi), c), jnp.zeros(ROWS), x.T),
        None,
        X,
        True,
    ),
    "scan over rows": (
        lambda s, x: lax.scan(lambda c, xi: (c + xi, c), s, x),
        uniform(6),
        X,
        False,
    ),
    "scan that sums": (
        lambda s, x: lax.scan(lambda c, xi: (c + (xi * x.T).sum(1), c), s, x.T[:, :]),
        np.zeros(6, np.float32),
        X,
        False,
    ),
    "while": (
        lambda s, x: lax.while_loop(lambda c: c.sum() < 300, lambda c: c * 1.5, x),
        None,
        X,
        False,
    ),
    "fori": (lambda s, x: lax.fori_loop(0, 3, lambda i, c: c * 1.1 + x, x), None, X, True),
    "cond": (
        lambda s, x: lax.cond(s > 0, lambda v: v * 2, lambda v: v.sum(0) + v, x),
        np.float32(1.0),
        X,
        False,
    ),
    "cond of a sum": (
        lambda s, x: lax.cond(x.sum() > 0, lambda v: v.sum(0), lambda v: s, x),
        uniform(6),
        X,
        False,
    ),
    "while within scan": (
        lambda s, x: lax.scan(
            lambda c, xi: (
                lax.while_loop(lambda d: d.max() < 3, lambda d: d * 2, c + xi),
                xi.sum(),
            ),
            jnp.ones(ROWS),
            x.T,
        ),
        None,
        X,
        False,
    ),
    "custom derivative": (lambda s, x: jax.nn.relu(x @ s), W, X, True),
    "checkpointed": (
        lambda s, x: jax.grad(lambda w: jax.checkpoint(lambda v: jnp.sin(x @ v))(w).sum())(s),
        W,
        X,
        False,
    ),
    "checkpointed rows": (
        lambda s, x: jax.vjp(jax.checkpoint(lambda rows: jnp.sin(rows @ s)), x)[1](
            jnp.ones((ROWS, 4))
        ),
        W,
        X,
        True,
    ),
    "checkpointed without a barrier": (
        lambda s, x: jax.vjp(jax.checkpoint(lambda rows: jnp.sin(rows @ s), prevent_cse=False), x)[
            1
        ](jnp.ones((ROWS, 4))),
        W,
        X,
        True,
    ),
    "mean of integers": (
        lambda s, x: (x.sum() // 3, x.astype(jnp.int8).sum()),
        None,
        TOKENS,
        False,
    ),
    "half precision": (
        lambda s, x: x.astype(jnp.float16).sum(0).astype(jnp.bfloat16),
        None,
        X,
        False,
    ),
    "least squares": (lambda s, x: jnp.linalg.lstsq(x, s)[0], uniform(ROWS), X, False),
    "determinant of the gram matrix": (lambda s, x: jnp.linalg.det(x.T @ x), None, X, False),
    "variance with weights": (
        lambda s, b: ((b[0] - b[0].mean()) ** 2 * b[1]).sum() / b[1].sum(),
        None,
        (X, uniform(ROWS, 1)),
        False,
    ),
    "windows that cover half of the rows": (
        lambda s, x: lax.scatter_add(
            x, jnp.array([1]), s, lax.ScatterDimensionNumbers((0,), (1,), (1,))
        ),
        uniform(ROWS // 2),
        X,
        False,
    ),
    "a loop of each row's own": (
        lambda s, x: jax.vmap(lambda r: lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2, r))(
            x
        ),
        None,
        X,
        False,
    ),
    "sums that wrap around": (
        lambda s, x: ((x > 0).astype(jnp.int8) * 100).sum(0, dtype=jnp.int8).astype(jnp.int32),
        None,
        X,
        False,
    ),
    "nothing of the batch": (lambda s, x: s * 2, uniform(3), X, True),
    "only a constant": (lambda s, x: (jnp.zeros(3), 1.0), None, X, True),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_one_device(name, group):
    function, state, batch, alone = PROGRAMS[name]
    expected = jax.jit(function)(state, batch)
    results, exchanges = divided(function, group, state, batch)
    assert jax.tree.structure(results) == jax.tree.structure(expected)
    for result, wanted in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        assert result.shape == wanted.shape
        assert result.dtype == wanted.dtype
        np.testing.assert_allclose(
            np.asarray(result, np.float64), np.asarray(wanted, np.float64), rtol=2e-3, atol=1e-5
        )
    assert (exchanges == 0) == alone


def train_step(state, batch):
    """A network of two layers with momentum, a metric and a weight decay."""
    weights, momenta, total = state
    inputs, targets = batch

    def loss_of(weights):
        hidden = jnp.tanh(inputs @ weights["w1"] + weights["b1"])
        errors = (hidden @ weights["w2"])[:, 0] - targets
        decay = sum((w**2).sum() for w in weights.values())
        return (errors**2).mean() + 0.01 * decay, jnp.abs(errors).sum()

    (loss, error), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
    norm = jnp.sqrt(sum((g**2).sum() for g in gradients.values()))
    gradients = jax.tree.map(lambda g: g / jnp.maximum(norm, 1.0), gradients)
    momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradients)
    weights = jax.tree.map(lambda w, m: w - 0.1 * m, weights, momenta)
    return {"loss": loss, "error": error}, (weights, momenta, total + error)


def test_a_training_step_exchanges_once(group):
    weights = {"w1": uniform(6, 5), "b1": uniform(5), "w2": uniform(5, 1)}
    state = (weights, jax.tree.map(np.zeros_like, weights), np.float32(0))
    batch = (X, uniform(ROWS))
    expected = jax.jit(train_step)(state, batch)
    (logs, new_state), exchanges = divided(train_step, group, state, batch)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), (logs, new_state), expected
    )
    assert exchanges == 1
    for leaf in jax.tree.leaves(new_state):
        assert leaf.sharding.is_equivalent_to(group.replicated, leaf.ndim)


def test_random_numbers_are_made_by_the_replica_whose_rows_they_are_for(group):
    def loss_of(w, key, x):
        hidden = x @ w
        kept = jax.random.bernoulli(key, 0.5, hidden.shape)
        return (jnp.where(kept, hidden, 0) ** 2).sum()

    closed = jax.make_jaxpr(jax.grad(loss_of))(W, jax.random.key(3), X)
    program = jax.jit(partition(closed, [False, False, True], group))
    placed = [
        jax.device_put(W, group.replicated),
        jax.device_put(jax.random.key(3), group.replicated),
        jax.device_put(X, group.sharded),
    ]
    text = program.lower(*placed).as_text()
    assert f"tensor<{ROWS // group.size}x4xui32>" in text
    assert f"tensor<{ROWS}x4xui32>" not in text


def test_a_normalised_batch_exchanges_what_each_statistic_has(group):
    def loss_of(state, x):
        scale, offset = state
        factor = scale * lax.rsqrt(x.var(0) + 1e-3)
        return jnp.square(x * factor + (offset - x.mean(0) * factor)).sum() * 0.1

    def gradients_of(state, x):
        return jax.grad(loss_of, argnums=(0, 1))(state, x)

    state = (uniform(6), uniform(6, seed=1))
    closed = jax.make_jaxpr(gradients_of)(state, X)
    program = jax.jit(partition(closed, [False, False, True], group))
    placed = [jax.device_put(array, group.replicated) for array in state]
    text = program.lower(*placed, jax.device_put(X, group.sharded)).as_text()
    shapes = re.findall(r"all_reduce.*?-> tensor<([\dx]+)xf32>", text, re.DOTALL)
    sizes = [math.prod(map(int, shape.split("x"))) for shape in shapes]
    # The mean, the variance, and backwards the same; no sum waits for another, nor is it repeated first.
    assert len(sizes) == 4
    assert max(sizes) < ROWS * 6
    results, _ = divided(gradients_of, group, state, X)
    expected = gradients_of(state, X)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), results, expected
    )


def test_the_gradient_of_pooling_is_found_by_comparisons(group):
    def gradient_of(_, x):
        def pooled(x):
            return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

        return jax.grad(lambda x: jnp.square(pooled(x)).sum())(x)

    closed = jax.make_jaxpr(gradient_of)(None, IMAGES)
    program = jax.jit(partition(closed, [True], group))
    placed = jax.device_put(IMAGES, group.sharded)
    assert "select_and_scatter" not in program.lower(placed).as_text()
    np.testing.assert_array_equal(program(placed)[0], gradient_of(None, IMAGES))


def test_a_recurrent_network_sums_its_gradients_once_after_the_loop(group):
    def loss_of(w, x):
        def cell(h, xi):
            return jnp.tanh(h @ w + xi[:, None]), None

        last, _ = lax.scan(cell, jnp.zeros((ROWS, 4)), x.T)
        return last.sum()

    state = uniform(4, 4)
    gradient, exchanges = divided(jax.grad(loss_of), group, state, X)
    np.testing.assert_allclose(gradient, jax.grad(loss_of)(state, X), rtol=1e-3, atol=1e-6)
    assert exchanges == 1


def test_a_batch_that_every_replica_has_is_computed_by_each(group):
    rows = uniform(7, 6)
    function = lambda s, x: (x @ s, x.sum(0))  # noqa: E731
    (product, total), exchanges = divided(function, group, W, rows, split=False)
    np.testing.assert_allclose(product, rows @ W, rtol=1e-5)
    np.testing.assert_allclose(total, rows.sum(0), rtol=1e-5)
    assert exchanges == 0


def test_effects_take_place_once(group):
    seen = []

    def function(s, x):
        jax.debug.callback(lambda total: seen.append(float(total)), x.sum())
        return x * 2

    result, _ = divided(function, group, None, X)
    jax.effects_barrier()
    np.testing.assert_allclose(result, X * 2)
    assert seen == [pytest.approx(X.sum(), rel=1e-5)]


def test_rows_stay_with_the_replicas(group):
    (rows, total), _ = divided(lambda s, x: (x * 2, x.sum(0)), group, None, X)
    assert rows.sharding.is_equivalent_to(group.sharded, rows.ndim)
    assert total.sharding.is_equivalent_to(group.replicated, total.ndim)


def test_constants_may_lie_on_the_replicas(group):
    weights = group.replicate(W)
    table = group.replicate(uniform(6))

    def function(s, x):
        scaled = jax.nn.relu(x / table) @ weights
        return jax.grad(lambda w: lax.scan(lambda c, v: (c + v @ w, None), s, scaled)[0].sum())(
            W.T @ W
        )

    expected = jax.jit(lambda s, x: function(s, x))(jnp.zeros(4), X)
    result, _ = divided(function, group, np.zeros(4, np.float32), X)
    np.testing.assert_allclose(result, expected, rtol=1e-4)


def test_effects_in_order_are_refused(group):
    def function(s, x):
        jax.debug.print("{}", x.sum(), ordered=True)
        return x

    with pytest.raises(sg.errors.UnsupportedError, match="Leave ordered out"):
        divided(function, group, None, X)
