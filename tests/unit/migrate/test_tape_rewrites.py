"""Blocks of ``GradientTape``: which become functions for ``sg.value_and_grad``, and which stay."""

import textwrap

import numpy as np
import pytest

import stratagem as sg
from stratagem._src.migrate.codemod import migrate_source

STEP = """\
import tensorflow as tf

w = tf.Variable([1.0, 2.0])
b = tf.Variable(0.5)


def step(x, y):
    # One step.
    with tf.GradientTape() as tape:  # recorded
        errors = x @ w + b - y
        loss = tf.reduce_mean(errors * errors)
    gradients = tape.gradient(loss, [w, b])  # of both
    return loss, errors, gradients
"""


def run(text):
    namespace = {}
    exec(
        compile(text.replace("import tensorflow", "import stratagem"), "step.py", "exec"), namespace
    )
    x = np.array([[1.0, 2.0], [3.0, -1.0]], np.float32)
    return namespace["step"](x, np.array([1.0, 2.0], np.float32))


def test_block_becomes_a_function():
    after = migrate_source(STEP).after
    assert after.endswith(
        """\
def step(x, y):
    # One step.
    def compute_loss():  # recorded
        errors = x @ w + b - y
        loss = jnp.mean(errors * errors)
        return loss, errors

    (loss, errors), gradients = sg.value_and_grad(compute_loss, [w, b], has_aux=True)()  # of both
    return loss, errors, gradients
"""
    )
    for found, expected in zip(run(after), run(STEP), strict=True):
        for one, other in zip(sg.nest.flatten(found), sg.nest.flatten(expected), strict=True):
            np.testing.assert_array_equal(one, other)


def test_gradients_are_unpacked_as_before():
    text = STEP.replace("gradients = tape", "dw, db = tape").replace("errors, gradients", "dw, db")
    after = migrate_source(text).after
    assert "loss, (dw, db) = sg.value_and_grad(compute_loss, [w, b])()" in after
    for found, expected in zip(run(after), run(text), strict=True):
        np.testing.assert_array_equal(found, expected)


KEPT = {
    "it is persistent": ("GradientTape()", "GradientTape(persistent=True)"),
    "it watches an array": ("        errors =", "        tape.watch(x)\n        errors ="),
    "its loss may not be a scalar": ("tf.reduce_mean(errors * errors)", "errors * errors"),
    "it reduces along an axis": ("errors * errors)", "errors * errors, axis=0)"),
    "its gradient comes later": ("    gradients =", "    other = f(x)\n    gradients ="),
    "missing gradients are asked for": (
        "return loss",
        "print(gradients[0] is None)\n    return loss",
    ),
    "weights decay": ("return loss", "optimizer.weight_decay\n    return loss"),
    "a name is read before it is assigned": ("errors = x", "x = x + 1\n        errors = x"),
    "it calls something for its effect": (
        "        loss =",
        "        metric.update(x)\n        loss =",
    ),
    "it branches": ("        loss =", "        if x is y:\n            errors = x\n        loss ="),
    "a value is asked for": ("x @ w + b", "x @ w + b.numpy()"),
    "the tape is used again": ("    return", "    tape.gradient(loss, w)\n    return"),
    "variables may be made in it": ("[w, b])", "model.trainable_variables)"),
}


@pytest.mark.parametrize("reason", KEPT)
def test_tape_stays_if(reason):
    old, new = KEPT[reason]
    assert old in STEP
    after = migrate_source(STEP.replace(old, new, 1)).after
    assert "with sg.GradientTape(" in after
    assert "value_and_grad" not in after


@pytest.mark.parametrize("built", ["optimizer.build(net.trainable_variables)", "net.build(2)"])
def test_variables_of_a_built_model_exist(built):
    text = STEP.replace("[w, b]", "net.trainable_variables").replace("\n\n\n", f"\n{built}\n\n\n")
    assert "sg.value_and_grad(compute_loss, net.trainable_variables" in migrate_source(text).after


def test_tape_in_a_function_that_another_tape_calls_stays():
    text = STEP + textwrap.dedent("""
        def outer(x, y):
            with tf.GradientTape() as tape:
                z = tf.reduce_sum(step(x, y)[0])
            return tape.gradient(z, [w])
        """)
    assert "value_and_grad" not in migrate_source(text).after
