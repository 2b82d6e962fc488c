"""Loops, branches and gradients of TensorFlow's, eagerly and compiled."""

import jax
import numpy as np
import pytest

import stratagem as tf
from stratagem._src.core.errors import VariableError

BOTH = pytest.mark.parametrize("run", [lambda f: f, tf.function], ids=["eager", "compiled"])


@BOTH
def test_while_loop(run):
    @run
    def count(n):
        return tf.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x * 2.0), (0, 1.0))

    i, x = count(tf.constant(5))
    assert (int(i), float(x)) == (5, 32.0)


@BOTH
def test_while_loop_ends_in_any_case(run):
    @run
    def count(x):
        return tf.while_loop(lambda x: True, lambda x: [x + 1], [x], maximum_iterations=4)

    assert int(count(tf.constant(1))[0]) == 5


@BOTH
def test_loops_over_elements(run):
    @run
    def loops(x):
        return (
            tf.map_fn(lambda row: tf.reduce_sum(row), x),
            tf.vectorized_map(lambda row: row[0], x),
            tf.scan(lambda a, row: a + row, x),
            tf.scan(lambda a, row: a + row, x, reverse=True),
            tf.scan(lambda a, row: a + tf.reduce_sum(row), x, initializer=10.0),
            tf.foldl(lambda a, row: a * row, x),
            tf.foldr(lambda a, row: a - row, x),
        )

    found = [np.asarray(one).tolist() for one in loops(tf.constant([[1.0, 2.0], [3.0, 4.0]]))]
    assert found == [
        [3, 7],
        [1, 3],
        [[1, 2], [4, 6]],
        [[4, 6], [3, 4]],
        [13, 20],
        [3, 8],
        [2, 2],
    ]


@BOTH
@pytest.mark.parametrize(("index", "wanted"), [(0, 1), (2, 3), (7, 9)])
def test_switch_case_assigns(run, index, wanted):
    v = tf.Variable(0)

    @run
    def choose(i):
        branches = {n: lambda n=n: v.assign(n + 1).value() for n in (0, 2)}
        return tf.switch_case(i, branches, default=lambda: v.assign(9).value())

    assert int(choose(tf.constant(index))) == wanted == int(v)


@BOTH
def test_case(run):
    @run
    def choose(x):
        return tf.case(
            [(x < 1.0, lambda: tf.constant(10)), (x < 2.0, lambda: tf.constant(20))],
            default=lambda: tf.constant(30),
        )

    assert [int(choose(tf.constant(x))) for x in (0.0, 1.5, 5.0)] == [10, 20, 30]
    with pytest.raises(tf.errors.InvalidArgumentError, match="got neither"):
        tf.case([(False, lambda: 1)])


def test_gradients():
    @tf.custom_gradient
    def f(x, y):
        return x * y, lambda upstream: (upstream * 100.0, None)

    assert [float(g) for g in jax.grad(f, (0, 1))(2.0, 3.0)] == [100.0, 0.0]
    assert float(jax.grad(lambda x: x * tf.stop_gradient(x))(3.0)) == 3.0
    assert float(jax.grad(tf.recompute_grad(lambda x: x**2))(3.0)) == 6.0
    assert float(jax.grad(tf.grad_pass_through(tf.round))(3.4)) == 1.0


def test_where_code_runs():
    seen = []

    @tf.function
    def f(x):
        seen.append((tf.executing_eagerly(), tf.inside_function()))
        with tf.name_scope("block"), tf.control_dependencies([x]):
            return x + 1

    f(tf.constant(1))
    assert set(seen) == {(False, True)}
    assert tf.executing_eagerly()
    assert not tf.inside_function()


@BOTH
def test_values_of_any_kind_in_replicas(run):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = tf.Variable([1.0, 2.0])

    @run
    def step():
        def replica():
            x = tf.add(v, np.ones(2, np.float32))
            x = tf.reshape(x, [tf.shape(v)[0], -1])
            return tf.reduce_mean(tf.matmul(x, x, transpose_b=True) * 2.0)

        return strategy.reduce("SUM", strategy.run(replica), axis=None)

    assert float(step()) == 25.0


def test_shapes_that_depend_on_values_say_so_when_traced():
    with pytest.raises(tf.errors.TracedValueError, match=r"tf.where\(mask, x, other\)"):
        jax.jit(lambda x: tf.boolean_mask(x, x > 0))(np.ones(2, np.float32))
    with pytest.raises(tf.errors.TracedValueError, match="known while a function is traced"):
        jax.jit(tf.range)(3)
    kept = jax.jit(lambda x: tf.boolean_mask(x, [True, False]))(np.ones(2, np.float32))
    assert kept.shape == (1,)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_branch_that_reads_and_assigns_a_watched_variable(compiled):
    x = tf.Variable(3.0)

    def differentiate(flag):
        with tf.GradientTape() as tape:
            y = tf.cond(flag, lambda: (x.value() ** 2, x.assign_add(1.0))[0], lambda: x * 2)
            z = y + x
        return tape.gradient(z, x)

    run = tf.function(differentiate) if compiled else differentiate
    assert float(run(tf.constant(True))) == 7.0
    assert float(x) == 4.0


def test_a_watched_variable_that_a_compiled_branch_reads_after_assigning_it():
    x = tf.Variable(3.0)

    @tf.function
    def differentiate(flag):
        with tf.GradientTape() as tape:
            y = tf.cond(flag, lambda: x.assign_add(x * 1.0).value(), lambda: x.value())
        return tape.gradient(y, x)

    with pytest.raises(VariableError, match="after the branch has assigned it"):
        differentiate(tf.constant(True))


def test_eager_loops_over_elements_use_variables_and_values():
    factor, calls = tf.Variable(2.0), tf.Variable(0)

    def evens(x):
        calls.assign_add(1)
        return x * factor if int(x) % 2 == 0 else tf.zeros_like(x)

    with tf.GradientTape() as tape:
        y = tf.map_fn(evens, tf.constant([2.0, 3.0, 4.0]))
        total = tf.scan(lambda a, x: a + x * factor, y, initializer=0.0)[-1]
    assert y.tolist() == [4.0, 0.0, 8.0]
    assert int(calls) == 3
    assert float(total) == 24.0
    assert float(tape.gradient(total, factor)) == 24.0
    assert [r.tolist() for r in tf.map_fn(lambda x: (x, x * factor), [1.0, 2.0])] == [
        [1, 2],
        [2, 4],
    ]
    assert tf.scan(lambda a, x: a - x * factor, [1.0, 2.0], reverse=True).tolist() == [0.0, 2.0]
    assert float(tf.foldl(lambda a, x: a + x * factor, [1.0, 2.0])) == 5.0


def test_eager_loops_without_elements_say_what_they_cannot_do():
    v = tf.Variable(2.0)
    with pytest.raises(tf.errors.ContextError, match="is read inside"):
        tf.map_fn(lambda x: x * v, tf.zeros([0]))


@BOTH
def test_a_bounded_while_loop_has_gradients(run):
    v = tf.Variable(1.5)

    @run
    def compute(n):
        with tf.GradientTape() as tape:
            i, y = tf.while_loop(
                lambda i, y: i < n, lambda i, y: (i + 1, y * v), (0, 1.0), maximum_iterations=5
            )
        return i, y, tape.gradient(y, v)

    assert [float(x) for x in compute(tf.constant(3))] == [3.0, 1.5**3, 3 * 1.5**2]
    assert [float(x) for x in compute(tf.constant(9))] == [5.0, 1.5**5, 5 * 1.5**4]
