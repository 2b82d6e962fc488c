"""Gradients by the shards of a sharded variable, and steps of optimizers on them."""

import gc

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg

TABLE = np.arange(20, dtype=np.float32).reshape(10, 2)
ROWS = [1, 7, 7]
OF_ROWS = np.array([3.0, 1.0, 2.0], np.float32)  # the weight of each read row in the loss


def tape_gradients(loss, variables):
    with sg.GradientTape() as tape:
        value = loss()
    return tape.gradient(value, variables)


def function_gradients(loss, variables):
    return sg.value_and_grad(loss, variables)()[1]


def in_function(gradients):
    return lambda *args: sg.function(lambda: gradients(*args))()


@pytest.fixture(params=["eager", "function"])
def gradients_of(request):
    def wrapped(compute, loss, variables):
        return (in_function(compute) if request.param == "function" else compute)(loss, variables)

    return wrapped


def dense(gradient):
    return np.asarray(gradient.to_dense() if isinstance(gradient, sg.IndexedSlices) else gradient)


def weighted_rows(table):
    return lambda: jnp.sum(table.sparse_read(ROWS) * OF_ROWS[:, None])


@pytest.mark.parametrize("compute", [tape_gradients, function_gradients])
def test_gradients_of_rows(servers, gradients_of, compute):
    table, bias = servers.sharded(TABLE, num_shards=2), servers.variable(0.0)
    rows = weighted_rows(table)
    found = gradients_of(compute, lambda: rows() + 2 * bias, [*table.variables, bias])
    assert all(isinstance(gradient, sg.IndexedSlices) for gradient in found[:2])
    expected = np.zeros((10, 2), np.float32)
    expected[1], expected[7] = 3, 3
    np.testing.assert_array_equal(np.concatenate([dense(g) for g in found[:2]]), expected)
    # Its norm is that of its own rows: those of the other shard are zeros.
    assert [float(jnp.sum(gradient.values**2)) for gradient in found[:2]] == [18, 10]
    assert float(found[2]) == 2


@pytest.mark.parametrize("compute", [tape_gradients, function_gradients])
def test_dense_gradients(servers, gradients_of, compute):
    table = servers.sharded(TABLE)
    found = gradients_of(compute, lambda: jnp.sum(table.read_value() ** 2), table.variables)
    for shard, gradient in zip(table.variables, found, strict=True):
        np.testing.assert_array_equal(gradient, 2 * shard.numpy())


@pytest.mark.parametrize("compute", [tape_gradients, function_gradients])
def test_a_shard_that_is_read_itself_too(servers, gradients_of, compute):
    table = servers.sharded(TABLE, num_shards=2)
    first, _ = table.variables
    rows = weighted_rows(table)
    found = gradients_of(compute, lambda: rows() + jnp.sum(first.read_value()), table.variables)
    expected = np.zeros((10, 2), np.float32)
    expected[1], expected[7] = 3, 3
    expected[:5] += 1
    np.testing.assert_array_equal(np.concatenate([dense(g) for g in found]), expected)


def test_a_tape_that_watches_shards(servers):
    table = servers.sharded(TABLE, num_shards=2)
    with sg.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(table.variables)
        loss = weighted_rows(table)()
    assert dense(tape.gradient(loss, table.variables[1]))[2].tolist() == [3, 3]


@pytest.mark.parametrize("optimizer", [optax.sgd(0.5, momentum=0.5), optax.adam(0.1)])
def test_steps_on_shards_are_steps_on_the_variable(servers, optimizer):
    whole, by_shards = servers.sharded(TABLE, num_shards=2), servers.sharded(TABLE, num_shards=2)

    def train(table, variables, optimizer):
        # Two steps in one function: the second one reads what the servers made of the first one.
        @sg.function
        def two_steps(rows):
            for _ in range(2):
                with sg.GradientTape() as tape:
                    loss = jnp.sum(table.sparse_read(rows) ** 2)
                found = variables(table)
                optimizer.apply_gradients(zip(tape.gradient(loss, found), found, strict=True))
            return loss

        losses = []
        for _ in range(2):
            losses.append(float(two_steps(np.array(ROWS))))
            gc.collect()
        return losses

    expected = train(whole, lambda table: [table], sg.train.Optimizer(optimizer))
    losses = train(by_shards, lambda table: table.variables, sg.train.Optimizer(optimizer))
    assert losses == expected
    assert losses[1] < losses[0]
    np.testing.assert_array_equal(by_shards.numpy(), whole.numpy())


def test_reads_see_assignments_of_shards_in_one_function(servers):
    table = servers.sharded(TABLE, num_shards=2)

    @sg.function
    def assign():
        table.variables[1].assign(np.ones((5, 2)))
        after_shard = table.read_value()
        table.assign_add(np.ones((10, 2)))
        return after_shard, table.variables[1].read_value()

    after_shard, after_table = assign()
    np.testing.assert_array_equal(after_shard[5:], np.ones((5, 2)))
    np.testing.assert_array_equal(after_shard[:5], TABLE[:5])
    np.testing.assert_array_equal(after_table, np.full((5, 2), 2))
