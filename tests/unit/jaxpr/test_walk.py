"""Rewriting the equations of a jaxpr, wherever they are in it."""

import jax
import jax.numpy as jnp
import pytest

from stratagem._src.jaxpr.walk import all_equations, rewrite_equations

custom = jax.custom_jvp(jnp.sin)
custom.defjvps(lambda tangent, result, x: tangent)

WRAPPED = {
    "plain": jnp.sin,
    "call": jax.jit(jnp.sin),
    "checkpointed call": jax.checkpoint(jnp.sin),
    "branches": lambda x: jax.lax.cond(x > 0, jnp.sin, jnp.cos, x),
    "loop in a call": jax.jit(lambda x: jax.lax.fori_loop(0, 2, lambda i, c: jnp.sin(c), x)),
    "custom derivative": custom,
}


def to_cos(eqn):
    return eqn.replace(primitive=jax.lax.cos_p) if eqn.primitive is jax.lax.sin_p else None


@pytest.mark.parametrize("name", WRAPPED)
def test_equations_are_replaced_in_every_body(name):
    closed = jax.make_jaxpr(WRAPPED[name])(0.5)
    rewritten = rewrite_equations(closed.jaxpr, to_cos)
    primitives = {eqn.primitive.name for eqn in all_equations(rewritten)}
    assert "cos" in primitives
    assert "sin" not in primitives
    # The original is as it was.
    assert "sin" in {eqn.primitive.name for eqn in all_equations(closed.jaxpr)}


@pytest.mark.parametrize("name", WRAPPED)
def test_an_unchanged_jaxpr_stays_the_same_object(name):
    jaxpr = jax.make_jaxpr(WRAPPED[name])(0.5).jaxpr
    assert rewrite_equations(jaxpr, lambda eqn: None) is jaxpr


@pytest.mark.parametrize("kind", [tuple, list])
def test_jaxprs_in_lists_and_tuples(kind):
    """JAX keeps the branches of a conditional in a tuple, and jaxprs of other primitives in lists."""
    closed = jax.make_jaxpr(WRAPPED["branches"])(0.5)
    eqns = [
        eqn.replace(params={**eqn.params, "branches": kind(eqn.params["branches"])})
        if "branches" in eqn.params
        else eqn
        for eqn in closed.jaxpr.eqns
    ]
    jaxpr = closed.jaxpr.replace(eqns=eqns)
    rewritten = rewrite_equations(jaxpr, to_cos)
    [branches] = [e.params["branches"] for e in rewritten.eqns if "branches" in e.params]
    assert type(branches) is kind
    assert "sin" not in {e.primitive.name for branch in branches for e in branch.jaxpr.eqns}
    assert rewrite_equations(jaxpr, lambda eqn: None) is jaxpr
