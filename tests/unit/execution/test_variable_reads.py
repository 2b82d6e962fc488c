"""A function finds the variables it uses when they are read first, wherever that is."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg


def in_scan(read):
    return jax.lax.scan(lambda carry, x: (carry + read() * x, None), jnp.float32(0), jnp.ones(3))[0]


def in_cond(read):
    return jax.lax.cond(jnp.sum(jnp.ones(3)) > 1, lambda: 3 * read(), lambda: -read())


def in_while(read):
    return jax.lax.while_loop(lambda x: x < 3 * read() - 0.5, lambda x: x + read(), jnp.float32(0))


def in_vmap(read):
    return jnp.sum(jax.vmap(lambda x: x * read())(jnp.ones(3)))


def in_grad(read):
    return jax.grad(lambda x: 3 * x * read())(jnp.float32(1))


def in_checkpoint(read):
    return jax.grad(jax.checkpoint(lambda x: 3 * x * read()))(jnp.float32(1))


def in_inner_jit(read):
    return jax.jit(lambda x: x * read())(jnp.float32(3))


def in_scan_of_vmap_of_grad(read):
    def body(carry, x):
        return carry + jnp.sum(jax.vmap(jax.grad(lambda y: y * read()))(x)), None

    return jax.lax.scan(body, jnp.float32(0), jnp.ones((3, 1)))[0]


def in_custom_vjp(read):
    @jax.custom_vjp
    def scaled(x):
        return x * read()

    scaled.defvjp(lambda x: (scaled(x), None), lambda _, ct: (ct * 3 * read(),))
    return jax.grad(scaled)(jnp.float32(1))


def in_value_and_grad_of_another(read):
    other = sg.Variable(1.0) if not hasattr(read, "other") else read.other
    read.other = other
    return sg.value_and_grad(lambda: 3 * other * read(), other)()[1]


PLACES = [
    in_scan,
    in_cond,
    in_while,
    in_vmap,
    in_grad,
    in_checkpoint,
    in_inner_jit,
    in_scan_of_vmap_of_grad,
    in_custom_vjp,
    in_value_and_grad_of_another,
]


@pytest.mark.parametrize("place", PLACES)
def test_first_read_inside_a_transformation(place):
    v = sg.Variable(2.0)

    def read():
        return v.value()

    step = sg.function(lambda: place(read) + 0 * v)
    assert float(step()) == 6
    v.assign(5.0)
    assert float(step()) == 15


@pytest.mark.parametrize("place", PLACES[:-1])
def test_first_read_inside_a_transformation_inside_run(place):
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = sg.Variable(2.0)

    @sg.function
    def step():
        return strategy.reduce("SUM", strategy.run(lambda: place(lambda: v.value())), axis=None)

    assert float(step()) == 12
    v.assign(5.0)
    assert float(step()) == 30


def test_variables_made_by_another_thread_while_tracing_can_be_used():
    made = []

    @sg.function
    def step():
        if not made:
            with ThreadPoolExecutor(1) as other:
                made.append(other.submit(sg.Variable, 3.0).result())
        return made[0] * 2

    assert float(step()) == 6


def test_a_first_call_does_no_more_work_when_unrelated_variables_are_alive():
    v = sg.Variable(2.0)

    def calls_of_a_first_call():
        step = sg.function(lambda x: x * v + 1)
        count = 0

        def count_calls(frame, event, arg):
            nonlocal count
            count += event == "call"

        sys.setprofile(count_calls)
        try:
            step(np.float32(3))
        finally:
            sys.setprofile(None)
        return count

    calls_of_a_first_call()  # imports, and caches of JAX
    alone = calls_of_a_first_call()
    unrelated = [sg.Variable(np.float32(i)) for i in range(300)]
    among_many = calls_of_a_first_call()
    assert among_many < alone + len(unrelated) / 2


def test_a_step_with_run_leaks_no_tracers():
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = sg.Variable(2.0, aggregation=sg.VariableAggregation.MEAN)

    @sg.function
    def step(x):
        def replica_step():
            loss, gradient = sg.value_and_grad(lambda: v * v * x, v)()
            v.assign_sub(gradient)
            return loss

        return strategy.reduce("MEAN", strategy.run(replica_step), axis=None)

    with jax.checking_leaks():
        assert float(step(jnp.float32(0.25))) == 1
    assert float(v) == 1
