"""GradientTape on one device: values that TensorFlow is known to give, and JAX's gradients."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as tf
from stratagem._src.core.thread_state import THREADS_IN_CONTEXT
from stratagem._src.jax_compat.tracing import under_trace


@pytest.fixture(autouse=True)
def _nothing_stays_open():
    yield
    assert not under_trace()
    assert not THREADS_IN_CONTEXT
    assert type(jnp.ones(2) * 2).__name__ == "ArrayImpl"


def same(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


# --- what TensorFlow's guide shows ---------------------------------------------------------------


def test_variable():
    x = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        y = x**2
    assert float(tape.gradient(y, x)) == 6.0


def test_layer_of_the_guide():
    w = tf.Variable(jnp.ones((3, 2)), name="w")
    b = tf.Variable(jnp.zeros(2), name="b")
    x = tf.constant([[1.0, 2.0, 3.0]])
    with tf.GradientTape(persistent=True) as tape:
        y = x @ w + b
        loss = jnp.mean(y**2)
    dl_dw, dl_db = tape.gradient(loss, [w, b])
    same(dl_dw, [[6, 6], [12, 12], [18, 18]])
    same(dl_db, [6, 6])
    named = tape.gradient(loss, {"w": w, "b": b})
    same(named["b"], dl_db)
    assert [v.name for v in tape.watched_variables()] == ["w:0", "b:0"]


def test_what_is_watched():
    x0 = tf.Variable(3.0)
    x1 = tf.Variable(3.0, trainable=False)
    x2 = x1 + 1.0  # not a variable
    x3 = tf.constant(3.0)
    with tf.GradientTape() as tape:
        y = x0**2 + x1**2 + x2**2 + x3
    assert tape.watched_variables() == (x0,)
    found = tape.gradient(y, [x0, x1, x2, x3])
    assert float(found[0]) == 6.0
    assert found[1:] == [None, None, None]


def test_watching_by_hand_only():
    x0, x1 = tf.Variable(0.0), tf.Variable(10.0)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(x1)
        y = jnp.sum(jax.nn.sigmoid(x0.value()) + jax.nn.softplus(x1.value()))
    found = tape.gradient(y, {"x0": x0, "x1": x1})
    assert found["x0"] is None
    same(found["x1"], jax.nn.sigmoid(10.0))


def test_intermediate_results():
    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
        z = y * y
    found = tape.gradient(z, [y, x])
    assert [float(g) for g in found] == [18.0, 108.0]


def test_intermediate_results_that_are_used_on_several_ways():
    x = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        a = x * 3.0
        b = a * a
        c = b + a * x
    found = tape.gradient(c, [a, b, x])
    assert [float(g) for g in found] == [2 * 6.0 + 2.0, 1.0, 3 * (12.0 + 2.0) + 6.0]


def test_control_flow():
    x = tf.constant(1.0)
    v0, v1 = tf.Variable(2.0), tf.Variable(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = v0 if x > 0.0 else v1**2
        result = result * 1.0
    assert float(result) == 2.0
    assert [None if g is None else float(g) for g in tape.gradient(result, [v0, v1])] == [1.0, None]


def test_persistent_and_not():
    x = tf.constant([1.0, 3.0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * x
        z = y * y
    same(tape.gradient(z, x), [4, 108])
    same(tape.gradient(y, x), [2, 6])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    tape.gradient(y, x)
    with pytest.raises(RuntimeError, match="not persistent"):
        tape.gradient(y, x)


def test_target_that_is_no_scalar_and_several_targets():
    x = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        y = x * tf.constant([3.0, 4.0])
    assert float(tape.gradient(y, x)) == 7.0
    with tf.GradientTape() as tape:
        targets = {"y0": x**2, "y1": 1 / x}
    same(tape.gradient(targets, x), 3.75)


def test_output_gradients():
    x = tf.Variable([1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        y = x * x
    same(tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])), [2, 40])
    same(tape.gradient([y, y], x, output_gradients=[tf.constant([1.0, 0.0]), None]), [4, 4])
    with pytest.raises(ValueError, match="shapes of the targets"):
        tape.gradient(y, x, output_gradients=tf.constant([1.0]))
    with pytest.raises(ValueError, match="one output_gradient per target"):
        tape.gradient([y, y], x, output_gradients=[y])


def test_unconnected():
    x, y = tf.Variable(2.0), tf.Variable([3.0, 1.0])
    with tf.GradientTape(persistent=True) as tape:
        z = y * y
    assert tape.gradient(z, x) is None
    same(tape.gradient(z, x, unconnected_gradients=tf.UnconnectedGradients.ZERO), 0.0)
    same(tape.gradient(z, [x, y], unconnected_gradients="zero")[1], [6, 2])
    assert tape.gradient(3.0, x) is None
    with pytest.raises(ValueError, match="nothing"):
        tape.gradient(z, x, unconnected_gradients="nothing")


def test_state_stops_gradients():
    x0, x1 = tf.Variable(3.0), tf.Variable(0.0)
    with tf.GradientTape() as tape:
        x1.assign_add(x0)
        y = x1**2  # starts recording from x1
    assert float(y) == 9.0
    found = tape.gradient(y, [x0, x1])
    assert found[0] is None
    assert float(found[1]) == 6.0


def test_assignment_between_reads_counts_each_read():
    v = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        y = v * v
        v.assign(v * 2)
        z = y + v * v
    assert float(z) == 9.0 + 36.0
    assert float(tape.gradient(z, v)) == 6.0 + 12.0


def test_a_read_is_a_value_of_its_own():
    v = tf.Variable(3.0)
    with tf.GradientTape(persistent=True) as tape:
        read = v.read_value()
        y = read * v
    assert float(tape.gradient(y, read)) == 3.0
    assert float(tape.gradient(y, v)) == 6.0


def test_variable_that_shares_its_array_with_what_is_watched():
    x = tf.constant([2.0])
    v = tf.Variable(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * v * v
    dx, dv = tape.gradient(y, [x, v])
    same(dx, [4])
    same(dv, [8])


def test_integers_have_no_gradient(caplog):
    x = tf.constant([[2, 2]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    assert tape.gradient(y, x) is None
    assert "dtype int32" in caplog.text


def test_casts_to_integers_cut():
    x = tf.Variable([1.5, 2.5])
    with tf.GradientTape() as tape:
        y = jnp.sum(x.value().astype(jnp.int32) * 1.0)
    assert tape.gradient(y, x) is None


def test_complex_gradients_are_tensorflows():
    z = tf.constant(1.0 + 2.0j)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(z)
        y = jnp.real(z) ** 2 + 3.0 * jnp.imag(z)
        w = z * z
    same(tape.gradient(y, z), 2.0 + 3.0j)  # dy/dx + i dy/dy
    same(tape.gradient(w, z), np.conj(2 * (1.0 + 2.0j)))


# --- the tape's other methods ----------------------------------------------------------------------


def test_stop_recording():
    x = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        y = x**2
        with tape.stop_recording():
            assert float(x * 2) == 6.0
            z = y * 5.0
        out = y + z
    assert float(tape.gradient(out, x)) == 6.0
    with pytest.raises(ValueError, match="inside the tape's block"), tape.stop_recording():
        pass


def test_gradient_inside_stop_recording():
    x = tf.Variable(4.0)
    with tf.GradientTape(persistent=True) as tape:
        y = x**2
        with tape.stop_recording():
            first = tape.gradient(y, x)
        z = first * 1.0
    assert float(first) == 8.0
    assert tape.gradient(z, x) is None


def test_reset_forgets():
    x = tf.Variable(3.0)
    with tf.GradientTape(persistent=True) as tape:
        y = x * x
        tape.reset()
        z = x * 5.0
    assert tape.gradient(y, x) is None
    assert float(tape.gradient(z, x)) == 5.0


def test_entered_again():
    x = tf.Variable(3.0)
    tape = tf.GradientTape(persistent=True)
    with tape:
        y = x * x
        with pytest.raises(ValueError, match="recording already"), tape:
            pass
    y_outside = y * 100.0
    with tape:
        z = y * 2.0
    assert float(tape.gradient(z, x)) == 12.0
    assert tape.gradient(y_outside, x) is None


def test_jacobian():
    x = tf.Variable([1.0, 2.0, 3.0])
    m = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    for at_once in (True, False):
        with tf.GradientTape() as tape:
            y = jnp.stack([m @ x.value(), jnp.sum(x.value() ** 2) * jnp.ones(2)])
        found = tape.jacobian(y, {"x": x, "m": m}, experimental_use_pfor=at_once)
        assert found["m"] is None
        assert found["x"].shape == (2, 2, 3)
        same(found["x"][0], m)
        same(found["x"][1], [[2, 4, 6], [2, 4, 6]])


@pytest.mark.slow
def test_batch_jacobian():
    x = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = jnp.stack([x[:, 0] * x[:, 1], x[:, 0] ** 2, x[:, 1]], axis=1)
    found = tape.batch_jacobian(y, x)
    assert found.shape == (3, 3, 2)
    same(found[1], [[4, 3], [6, 0], [0, 1]])
    with pytest.raises(ValueError, match="same number of rows"):
        tf.GradientTape().batch_jacobian(y[:2], x)


@pytest.mark.slow
def test_hessian_by_nested_tapes():
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = jnp.sum(x**3) * x[0]
        g = inner.gradient(y, x)
    same(outer.jacobian(g, x), jax.hessian(lambda x: jnp.sum(x**3) * x[0])(x))


def test_third_order():
    x = tf.constant(2.0)
    with tf.GradientTape() as a:
        a.watch(x)
        with tf.GradientTape() as b:
            b.watch(x)
            with tf.GradientTape() as c:
                c.watch(x)
                y = jnp.exp(2 * x) * x
            first = c.gradient(y, x)
        second = b.gradient(first, x)
    third = a.gradient(second, x)

    def f(x):
        return jnp.exp(2 * x) * x

    same(first, jax.grad(f)(x))
    same(second, jax.grad(jax.grad(f))(x))
    same(third, jax.grad(jax.grad(jax.grad(f)))(x))


def test_gradient_inside_the_block_of_a_tape_that_ends_with_it():
    x = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        y = x * x
        found = tape.gradient(y, x)
        after = found * x
    assert float(found) == 6.0
    assert float(after) == 18.0


def test_a_tape_refuses_to_differentiate_its_own_gradient():
    x = tf.Variable(3.0)
    with tf.GradientTape(persistent=True) as tape:
        y = x**3
        first = tape.gradient(y, x)
        x.assign_sub(0.0 * first)  # an optimizer's step in the block
        z = first * x
    assert float(first) == 27.0
    with pytest.raises(NotImplementedError, match="nest tapes"):
        tape.gradient(z, x)
    assert float(tape.gradient(y, x)) == 27.0


def test_tapes_left_out_of_order():
    x = tf.Variable(3.0)
    first, second = tf.GradientTape(), tf.GradientTape()
    first.__enter__()
    second.__enter__()
    y = x * x
    first.__exit__(None, None, None)
    z = y * x
    second.__exit__(None, None, None)
    assert float(first.gradient(y, x)) == 6.0
    assert float(second.gradient(z, x)) == 27.0


def test_an_error_in_the_block_leaves_nothing_behind():
    x = tf.Variable(3.0)

    def fail():
        with tf.GradientTape(), tf.GradientTape():
            raise ZeroDivisionError(x * x)

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not under_trace()


def test_a_tape_that_is_forgotten_in_its_block():
    x = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        del tape
        y = x * x
    assert float(y) == 9.0


def test_threads_have_tapes_of_their_own():
    x = tf.Variable(3.0)
    found = []

    def other():
        with tf.GradientTape() as tape:
            y = x * 2.0
        found.append(float(tape.gradient(y, x)))

    with tf.GradientTape() as tape:
        y = x * x
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(30)
    assert found == [2.0]
    assert float(tape.gradient(y, x)) == 6.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda tape, x: tape.watch(1.0), "takes arrays and variables, got float"),
        (lambda tape, x: tape.watch(np.ones(2)), "got ndarray"),
        (lambda tape, x: tape.gradient(x * 1.0, 3.0), "got float as source"),
        (lambda tape, x: tape.jacobian(3.0, x), "takes one array as target"),
    ],
)
def test_wrong_arguments(call, message):
    x = tf.Variable(3.0)
    with pytest.raises(ValueError, match=message), tf.GradientTape() as tape:
        call(tape, x)


def test_watch_outside_of_the_block():
    with pytest.raises(ValueError, match="inside the tape's block"):
        tf.GradientTape().watch(tf.constant(1.0))


# --- values are ordinary ---------------------------------------------------------------------------


def test_values_are_ordinary_arrays_inside_and_afterwards():
    x = tf.Variable([1.0, 2.0])
    metric = tf.metrics.Mean()
    with tf.GradientTape() as tape:
        h = jnp.tanh(x.value())
        loss = jnp.sum(h)
        metric.update_state(loss)
        assert float(loss) > 1
        assert np.asarray(h).shape == (2,)
        assert "Array" in repr(loss)
        if loss > 0:
            loss = loss * 2
    assert type(loss) is type(jnp.ones(()))
    jax.block_until_ready(loss)
    assert loss.numpy() == np.float32(loss)
    same(jax.jit(lambda a: a + 1)(loss), loss + 1)
    same(tape.gradient(loss, x), 2 * (1 - np.tanh([1.0, 2.0]) ** 2))
    same(metric.result(), np.tanh([1.0, 2.0]).sum())


def test_a_function_in_the_block_is_differentiated():
    w = tf.Variable(3.0)

    @tf.function
    def f(x):
        return w * x * x

    x = tf.constant(2.0)
    assert float(f(x)) == 12.0
    assert float(f(x)) == 12.0
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    dw, dx = tape.gradient(y, [w, x])
    assert (float(dw), float(dx)) == (4.0, 12.0)


def test_handed_to_other_functions():
    w = tf.Variable(2.0)

    def forward(tape, x):
        tape.watch(x)
        return w * x

    def finish(tape, y, sources):
        return tape.gradient(y, sources)

    @tf.function
    def step(x):
        tape = tf.GradientTape()
        with tape:
            y = forward(tape, x)
        return finish(tape, y, [w, x])

    same(step(jnp.float32(5.0)), [5, 2])


def test_arrays_that_a_compiled_function_captures():
    x = tf.constant([1.0, 2.0])

    @jax.jit
    def inner(a):
        return a * x

    @jax.jit
    def outer(a):
        return jnp.sum(inner(a) * a)

    a = tf.constant([3.0, 4.0])
    same(outer(a), 41.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = outer(a)
    same(tape.gradient(y, x), [9, 16])


# --- against jax.grad ---------------------------------------------------------------------------------


@jax.custom_vjp
def clipped(x):
    return x * 2


clipped.defvjp(lambda x: (clipped(x), x), lambda x, ct: (jnp.clip(ct, -0.1, 0.1) * x,))


@jax.custom_jvp
def scaled(x):
    return jnp.sin(x)


scaled.defjvp(lambda primals, tangents: (scaled(*primals), 7.0 * tangents[0]))


def recurrent(w, x):
    def body(carry, row):
        carry = jnp.tanh(carry @ w + row)
        return carry, carry

    _, rows = jax.lax.scan(body, jnp.zeros(3), x)
    return jnp.sum(rows**2)


PROGRAMS = {
    "dense": lambda w, x: jnp.sum(jax.nn.relu(x @ w) ** 2),
    "softmax": lambda w, x: -jnp.mean(jax.nn.log_softmax(x @ w)[:, 1]),
    "convolution": lambda w, x: jnp.sum(jnp.convolve(x.ravel(), w.ravel()) ** 2),
    "indexing": lambda w, x: jnp.sum(w[jnp.array([0, 2, 0])] * x[:3] + w.at[0].set(1.0)[1]),
    "sort and cumsum": lambda w, x: jnp.sum(jnp.cumsum(jnp.sort(w, axis=0), 0) * x[:3]),
    "stop_gradient": lambda w, x: jnp.sum(jax.lax.stop_gradient(w) * w * x[:3]),
    "custom_vjp": lambda w, x: jnp.sum(clipped(w * w) * x[:3]),
    "custom_jvp": lambda w, x: jnp.sum(scaled(w * w) * x[:3]),
    "scan": recurrent,
    "cond": lambda w, x: jax.lax.cond(x[0, 0] > 0, lambda: jnp.sum(w**2), lambda: jnp.sum(w)),
    "while": lambda w, x: jax.lax.fori_loop(0, 3, lambda i, c: c * jnp.sum(w * w), 0.1),
    "checkpoint": lambda w, x: jnp.sum(jax.checkpoint(lambda w: jnp.sin(x @ w))(w)),
    "vmap": lambda w, x: jnp.sum(jax.vmap(lambda row: jnp.tanh(row @ w))(x)),
    "inner grad": lambda w, x: jnp.sum(jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w) ** 2),
    "jit": lambda w, x: jnp.sum(jax.jit(lambda w: (w, jnp.sin(w)))(w)[1] * x[:3]),
    "random": lambda w, x: jnp.sum(w * jax.random.normal(jax.random.key(0), (3, 3))),
    "linear algebra": lambda w, x: jnp.linalg.slogdet(w @ w.T + jnp.eye(3))[1],
    "list of scalars": lambda w, x: jnp.sum(jnp.array([w[0, 0], w[1, 1] * x[0, 0]]) ** 2),
    "iteration": lambda w, x: sum(jnp.sum(row * row) for row in w),
    "einsum": lambda w, x: jnp.einsum("ij,jk,ik->", x, w, x),
}
QUICK = ["dense", "stop_gradient", "custom_vjp", "scan", "indexing"]


def _parameters():
    return [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PROGRAMS
    ]


@pytest.mark.parametrize("name", _parameters())
@pytest.mark.parametrize("way", ["eager", pytest.param("jit", marks=pytest.mark.slow), "function"])
def test_program_is_differentiated_as_by_jax(name, way):
    if name == "while" and way != "eager":
        pytest.skip("the same as eagerly")
    program = PROGRAMS[name]
    random = np.random.default_rng(3)
    w = jnp.asarray(random.normal(size=(3, 3)), jnp.float32)
    x = jnp.asarray(random.normal(size=(4, 3)), jnp.float32)

    def with_tape(w, x):
        with tf.GradientTape() as tape:
            tape.watch((w, x))
            y = program(w, x)
        return y, tape.gradient(y, [w, x], unconnected_gradients="zero")

    run = {"eager": lambda f: f, "jit": jax.jit, "function": tf.function}[way]
    y, found = run(with_tape)(w, x)
    expected_y, expected = jax.value_and_grad(program, (0, 1))(w, x)
    same(y, expected_y)
    same(found[0], expected[0])
    same(found[1], expected[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in ("while", "custom_jvp")])
def test_second_derivatives_as_by_jax(name):
    program = PROGRAMS[name]
    random = np.random.default_rng(5)
    w = jnp.asarray(random.normal(size=(3, 3)), jnp.float32)
    x = jnp.asarray(random.normal(size=(4, 3)), jnp.float32)

    def squared(w):
        return jnp.sum(jax.grad(program)(w, x) ** 2)

    def with_tapes(w):
        with tf.GradientTape() as outer:
            outer.watch(w)
            with tf.GradientTape() as inner:
                inner.watch(w)
                y = program(w, x)
            first = inner.gradient(y, w)
            z = jnp.sum(first**2)
        return outer.gradient(z, w, unconnected_gradients="zero")

    expected = jax.grad(squared)(w)
    np.testing.assert_allclose(with_tapes(w), expected, rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(jax.jit(with_tapes)(w), expected, rtol=2e-4, atol=1e-5)


def _random_program(seed, leaves):
    """Computes a random expression of many steps, some of which cut the gradient or have none."""
    random = np.random.default_rng(seed)
    values = list(leaves)
    unary = [
        jnp.sin, jnp.tanh, jnp.abs, jax.nn.relu, jax.lax.stop_gradient, jnp.flip, jax.jit(jnp.cos),
        jax.jit(lambda x: x), lambda x: jnp.cumsum(x) * 0.3, lambda x: jnp.round(x),
        lambda x: jax.lax.scan(lambda c, a: (c + a, c * a), jnp.float32(0), x)[1] * 0.1,
        lambda x: x.astype(jnp.int32) * 1.0, lambda x: x, lambda x: jnp.array(list(x)),
        clipped,
    ]  # fmt: skip
    binary = [jnp.add, jnp.multiply, jnp.subtract, jnp.maximum, lambda a, b: jnp.where(a > b, a, b)]
    for _ in range(12):
        if random.random() < 0.5:
            values.append(unary[random.integers(len(unary))](values[random.integers(len(values))]))
        else:
            pair = (values[random.integers(len(values))] for _ in range(2))
            values.append(jnp.tanh(binary[random.integers(len(binary))](*pair)))
    return sum(jnp.sum(value) for value in values[-4:])


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=() if n < 1 else pytest.mark.slow) for n in range(30)]
)
def test_random_programs(seed):
    random = np.random.default_rng(100 + seed)
    leaves = [jnp.asarray(random.normal(size=4), jnp.float32) for _ in range(3)]
    variables = [tf.Variable(leaf) for leaf in leaves]
    expected_y, expected = jax.value_and_grad(lambda leaves: _random_program(seed, leaves))(leaves)

    def of_arrays(leaves):
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            y = _random_program(seed, leaves)
        return y, tape.gradient(y, leaves, unconnected_gradients="zero")

    def of_variables():
        with tf.GradientTape() as tape:
            y = _random_program(seed, [v.value() for v in variables])
        return y, tape.gradient(y, variables, unconnected_gradients="zero")

    found = [
        of_arrays(leaves),
        jax.jit(of_arrays)(leaves),
        of_variables(),
        tf.function(of_variables)(),
    ]
    for y, gradients in found:
        same(y, expected_y)
        for mine, other in zip(gradients, expected, strict=True):
            same(mine, other)


# --- inside JAX's transformations --------------------------------------------------------------------


def test_tape_in_the_body_of_a_scan():
    w = tf.Variable(2.0)

    def scanned(xs):
        def body(carry, x):
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                y = x**3 * w
            return carry + tape.gradient(y, x), tape.gradient(y, w)

        return jax.lax.scan(body, 0.0, xs)

    total, rows = tf.function(scanned)(jnp.array([1.0, 2.0]))
    same(total, 2 * (3 + 12))
    same(rows, [1, 8])


def test_variable_read_in_the_body_of_a_scan():
    w = tf.Variable(2.0)

    @tf.function
    def step(xs):
        with tf.GradientTape() as tape:
            total, _ = jax.lax.scan(lambda c, x: (c + w * w * x, None), 0.0, xs)
        return tape.gradient(total, w)

    same(step(jnp.array([1.0, 2.0])), 12.0)


def test_watch_inside_of_a_body_is_refused():
    def body(tape, c, x):
        tape.watch(x)
        return c + x, None

    with (
        pytest.raises(RuntimeError, match="separately from the tape's block"),
        tf.GradientTape() as tape,
    ):
        jax.lax.scan(lambda c, x: body(tape, c, x), 0.0, jnp.ones(3))


def test_value_and_grad_in_the_block():
    w = tf.Variable([1.0, 2.0])

    def step():
        with tf.GradientTape() as tape:
            _, first = tf.value_and_grad(lambda: jnp.sum(w**3), w)()
            z = jnp.sum(first * first)
        return tape.gradient(z, w)

    same(step(), [36, 288])
    same(tf.function(step)(), [36, 288])


def test_tape_in_value_and_grad():
    w = tf.Variable([1.0, 2.0])

    def penalty():
        with tf.GradientTape() as tape:
            y = jnp.sum(w**3)
        return jnp.sum(tape.gradient(y, w) ** 2)

    def step():
        return tf.value_and_grad(penalty, w)()[1]

    same(step(), [36, 288])
    same(tf.function(step)(), [36, 288])


def test_compiled_step_is_the_program_of_value_and_grad():
    variables = [tf.Variable(np.ones((8, 8), np.float32) * 0.1) for _ in range(4)]

    def loss(x, values):
        for value in values:
            x = jnp.tanh(x @ value)
        return jnp.mean(x**2)

    def with_tape(values, x):
        with tf.GradientTape() as tape:
            tape.watch(values)
            y = loss(x, values)
        return y, tape.gradient(y, values)

    def with_jax(values, x):
        return jax.value_and_grad(lambda values: loss(x, values))(values)

    values, x = [v.value() for v in variables], jnp.ones((4, 8))

    def counted(step):
        text = jax.jit(step).lower(values, x).compile().as_text()
        return sum(" = " in line for line in text.splitlines())

    assert counted(with_tape) == counted(with_jax)


@pytest.mark.parametrize(
    "multiply",
    [lambda w, x: w * x, lambda w, x: w.value() * x, lambda w, x: jnp.multiply(w.value(), x)],
)
def test_an_array_of_numpy_that_is_changed_before_the_gradient_is_asked_for(multiply):
    w, x = tf.Variable(1.0), np.ones(4, np.float32)
    with tf.GradientTape() as tape:
        y = jnp.sum(multiply(w, x))
    x[:] = 5
    assert float(tape.gradient(y, w)) == 4
