"""Keys of jaxprs: equal for those that compute the same, and for no others."""

from __future__ import annotations

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem._src.execution.jaxpr_key import jaxpr_key
from stratagem._src.jax_compat.derivative_rules import derivative_rules
from stratagem._src.jaxpr.walk import all_equations

X = jax.ShapeDtypeStruct((4, 4), jnp.float32)


def key_of(fn, *args):
    return jaxpr_key(jax.make_jaxpr(fn)(*(args or (X,))).jaxpr)


def with_rule(factor):
    @jax.custom_jvp
    def fn(x):
        return x * factor

    fn.defjvp(lambda primals, tangents: (fn(*primals), tangents[0]))
    return fn


# Each makes a new function every time, of which all are alike.
ALIKE = {
    "operators": lambda: lambda x: x @ x.T + 1,
    "derivative": lambda: jax.grad(lambda x: jnp.sum(jax.nn.relu(x) ** 2)),
    "custom rule": lambda: with_rule(2.0),
    "scan": lambda: lambda x: jax.lax.scan(lambda c, row: (c + row, c * 2.0), x[0], x),
    "cond": lambda: lambda x: jax.lax.cond(x[0, 0] > 1, lambda: x, lambda: -x),
    "random": lambda: lambda x: x + jax.random.normal(jax.random.key(0), (4, 4)),
    "constant in jit": lambda: lambda x: jax.jit(lambda y: y + np.arange(4.0))(x),
    "callback": lambda: lambda x: jax.debug.callback(lambda _: None, x) or x,
    "print": lambda: lambda x: jax.debug.print("{}", x) or x,
    "checkpoint": lambda: jax.checkpoint(lambda x: jnp.sin(x) * 2),
    "captured array": lambda: functools.partial(jnp.add, np.random.rand(4, 4).astype(np.float32)),
}


@pytest.mark.parametrize("make", ALIKE.values(), ids=ALIKE)
def test_functions_that_compute_the_same(make):
    first, second = make(), make()
    a = key_of(lambda x: first(x))
    gc.collect()
    b = key_of(lambda x: second(x))
    assert a == b
    assert hash(a) == hash(b)


DIFFERENT = {
    "operation": [jnp.sin, jnp.cos],
    "operand": [lambda x: x - x.T, lambda x: x.T - x],
    "number": [lambda x: x * 2.0, lambda x: x * 3.0],
    "zero": [lambda x: x * 0.0, lambda x: x * -0.0],
    "axis": [lambda x: x.sum(0), lambda x: x.sum(1)],
    "output": [lambda x: (x, -x), lambda x: (-x, x)],
    "dropped output": [lambda x: jnp.linalg.qr(x)[0], lambda x: jnp.linalg.qr(x)[1][:, :4]],
    "number in scan": [
        lambda x, k=k: jax.lax.scan(lambda c, row: (c + row * k, None), x[0], x)[0]
        for k in (2.0, 3.0)
    ],
    "constant in jit": [
        lambda x, k=k: jax.jit(lambda y: y + np.arange(4.0) * k)(x) for k in (1, 2)
    ],
    "large constant in jit": [
        lambda x, c=c: jax.jit(lambda y: y + c[:4, :4])(x)
        for c in (np.zeros((600, 600), np.float32), np.ones((600, 600), np.float32))
    ],
    "branch": [
        lambda x, k=k: jax.lax.cond(x[0, 0] > 1, lambda: x * k, lambda: x) for k in (2.0, 3.0)
    ],
    "custom function": [with_rule(2.0), with_rule(3.0)],
    "text": [lambda x, t=t: jax.debug.print(t, x) or x for t in ("a {}", "b {}")],
    "precision": [lambda x, p=p: jnp.matmul(x, x, precision=p) for p in ("default", "highest")],
    "matmul dtype": [
        lambda x, t=t: jax.lax.dot(x, x, preferred_element_type=t)
        for t in (jnp.float32, jnp.bfloat16)
    ],
}


@pytest.mark.parametrize("functions", DIFFERENT.values(), ids=DIFFERENT)
def test_functions_that_compute_something_else(functions):
    first, second = (key_of(lambda x, fn=fn: fn(x)) for fn in functions)
    assert first != second


def test_other_shapes_and_dtypes():
    keys = {
        key_of(jnp.sin, jax.ShapeDtypeStruct(shape, dtype))
        for shape in [(4,), (4, 4)]
        for dtype in (jnp.float32, jnp.bfloat16)
    }
    assert len(keys) == 4
    assert key_of(jnp.sin, 1.0) != key_of(jnp.sin, np.float32(1.0))  # a weak type


def test_the_rules_that_are_left_out_are_those_of_jax():
    @jax.custom_vjp
    def fn(x):
        return x * 2

    fn.defvjp(lambda x: (fn(x), None), lambda _, g: (g,))
    jaxpr = jax.make_jaxpr(lambda x: fn(with_rule(2.0)(x)))(X).jaxpr
    called = {eqn.primitive.name: eqn for eqn in all_equations(jaxpr)}
    for name in ("custom_jvp_call", "custom_vjp_call"):
        assert derivative_rules(name) < set(called[name].params)
    assert not derivative_rules("add")


def test_a_key_does_not_keep_the_inner_programs():
    # The body of a step is new in each iteration of a loop over a dataset.
    outer = jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, row: (c + row, c), x[0], x))(X).jaxpr
    (body,) = [eqn.params["jaxpr"] for eqn in outer.eqns if eqn.primitive.name == "scan"]
    key, kept = jaxpr_key(outer), weakref.ref(body)
    assert jaxpr_key(outer) == key
    del outer, body
    jax.clear_caches()
    gc.collect()
    assert kept() is None
