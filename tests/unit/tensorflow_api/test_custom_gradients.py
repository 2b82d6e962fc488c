"""Gradients of functions that have rules of their own, and of what these capture."""

import jax
import jax.numpy as jnp
import pytest

import stratagem as tf
from stratagem._src.core.errors import InvalidArgumentError, UnsupportedError


def _with_rules(captured):
    """Returns functions of ``x`` that capture ``captured``, whose rules do not mention it."""

    @jax.custom_jvp
    def by_jvp(x):
        return jnp.sum(x * 2 + captured)

    by_jvp.defjvp(lambda primals, tangents: (by_jvp(*primals), jnp.sum(tangents[0] * 2)))

    @jax.custom_vjp
    def by_vjp(x):
        return jnp.sum(x * 2 + captured)

    by_vjp.defvjp(lambda x: (by_vjp(x), ()), lambda _, upstream: (upstream * jnp.full(2, 2.0),))
    outer = jax.custom_jvp(lambda x: by_vjp(x) * 1)
    outer.defjvp(lambda primals, tangents: (outer(*primals), jnp.sum(tangents[0] * 2)))
    return {
        "jvp": by_jvp,
        "vjp": by_vjp,
        "nested": outer,
        "jit": jax.jit(by_jvp),
        "vmap": lambda x: jax.vmap(by_jvp)(x[None])[0],
        "scan": lambda x: jax.lax.scan(lambda s, _: (s + by_jvp(x), 0), 0.0, None, length=1)[0],
        "checkpoint": jax.checkpoint(by_jvp),
        "beside relu": lambda x: by_jvp(x) + jnp.sum(jax.nn.relu(x)) - jnp.sum(x),
    }


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", _with_rules(0.0))
def test_what_a_custom_rule_captures_has_no_silent_gradient(name, compiled):
    captured_before = tf.constant([3.0, 4.0])

    def differentiate(x):
        with tf.GradientTape(persistent=True) as tape:
            captured = captured_before * 1.0
            tape.watch([x, captured])
            y = _with_rules(captured)[name](x)
            z = _with_rules(jax.lax.stop_gradient(captured))[name](x)
        with pytest.raises(
            UnsupportedError, match="with respect to a value that the function captures"
        ):
            tape.gradient(y, captured)
        assert tape.gradient(z, captured) is None
        return tape.gradient(y, x)

    run = tf.function(differentiate) if compiled else differentiate
    assert run(tf.constant([1.0, 5.0])).tolist() == [2.0, 2.0]


def test_a_compiled_branch_with_a_rule_that_captures_is_refused():
    @tf.function
    def differentiate(x):
        with tf.GradientTape() as tape:
            captured = x * 1.0
            tape.watch(captured)
            rule = _with_rules(captured)["jvp"]
            y = jax.lax.cond(x[0] > 0, rule, lambda x: x[0], x)
        return tape.gradient(y, captured)

    with pytest.raises(
        UnsupportedError, match="with respect to a value that the function captures"
    ):
        differentiate(tf.constant([1.0, 5.0]))


def test_an_outer_tape_differentiates_what_an_inner_one_cannot():
    x, captured = tf.constant([1.0, 5.0]), tf.constant([3.0, 4.0])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(captured)
            y = _with_rules(captured)["vjp"](x)
    with pytest.raises(
        UnsupportedError, match="with respect to a value that the function captures"
    ):
        inner.gradient(y, captured)
    assert outer.gradient(y, x).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("compiled", [False, True])
def test_custom_gradient_gives_variables_theirs(compiled):
    w = tf.Variable(3.0)

    @tf.custom_gradient
    def scaled(x):
        return x * w, lambda upstream, variables: (
            upstream * 7,
            [upstream * 100 for _ in variables],
        )

    def by_tape(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = scaled(x) * 2
        return tape.gradient(y, [x, w])

    def by_value_and_grad(x):
        return tf.value_and_grad(lambda x: scaled(x) * 2, [w], argnums=0)(x)[1]

    for differentiate in (by_tape, by_value_and_grad):
        run = tf.function(differentiate) if compiled else differentiate
        assert sorted(map(float, jax.tree.leaves(run(tf.constant(2.0))))) == [14.0, 200.0]


def test_custom_gradient_without_variables_argument_is_refused():
    w = tf.Variable(3.0)
    scaled = tf.custom_gradient(lambda x: (x * w, lambda upstream: upstream))
    with tf.GradientTape() as tape:
        y = scaled(tf.constant(2.0))
    with pytest.raises(InvalidArgumentError, match="'variables'"):
        tape.gradient(y, w)
