"""``tf.autograph``, ``tf.optimizers`` and its like, and ``tf.errors``, as programs use them."""

import jax
import numpy as np
import pytest

import stratagem as tf
import stratagem.keras  # here, for Keras sets environment variables when it is imported


def test_functions_that_are_not_converted_run_as_they_are():
    @tf.autograph.experimental.do_not_convert
    def double(x):
        return 2 * x

    @tf.autograph.experimental.do_not_convert()
    def triple(x):
        return 3 * x

    assert float(tf.function(lambda x: double(x) + triple(x))(tf.constant(2.0))) == 10


def test_options_of_loops_do_not_change_them():
    @tf.function
    def total(x):
        for i in range(3):
            tf.autograph.experimental.set_loop_options(
                parallel_iterations=1, shape_invariants=[(x, tf.TensorShape([None]))]
            )
            x = x + i
        return x

    assert float(total(tf.constant(1.0))) == 4
    with pytest.raises(NotImplementedError, match=r"maximum_iterations=2. Use tf.while_loop"):
        tf.autograph.experimental.set_loop_options(maximum_iterations=2)


def test_conversion_explains():
    tf.autograph.set_verbosity(3, True)
    for name in "to_graph", "to_code":
        with pytest.raises(AttributeError, match=r"jax.lax.cond, jax.lax.while_loop"):
            getattr(tf.autograph, name)


def test_trace_prints_while_tracing(capsys):
    @tf.function
    def step(x):
        tf.autograph.trace("traced", 1)
        return x

    step(tf.constant(1.0))
    step(tf.constant(2.0))
    assert capsys.readouterr().out == "traced 1\n"


def test_modules_of_keras_below_tf():
    assert tf.optimizers.Adam is tf.keras.optimizers.Adam
    assert tf.losses.Huber is tf.keras.losses.Huber
    assert tf.initializers.HeNormal is tf.keras.initializers.HeNormal
    assert float(tf.losses.MeanSquaredError()([[1.0]], [[3.0]])) == 4


def test_errors_that_programs_catch():
    with pytest.raises(tf.errors.OpError):
        raise tf.errors.OutOfRangeError("end")
    with pytest.raises(tf.errors.AbortedError):
        raise tf.errors.UnavailableError("lost")
    with pytest.raises(tf.errors.UnimplementedError):
        tf.autograph.experimental.set_loop_options(maximum_iterations=1)
    fails = jax.jit(lambda: jax.pure_callback(lambda: 1 / 0, jax.ShapeDtypeStruct((), np.float32)))
    with pytest.raises(tf.errors.InternalError, match="ZeroDivisionError"):
        jax.block_until_ready(fails())
    assert tf.errors.ResourceExhaustedError is tf.errors.UnknownError is jax.errors.JaxRuntimeError
