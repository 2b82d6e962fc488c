"""Mixed precision by one argument computes what casts by hand compute."""

import contextlib

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg
from stratagem._src.training import precision_policy

ex = sg.distribute.experimental
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(2, 8, 16)).astype(np.float32)
Y = RANDOM.normal(size=(2, 8, 4)).astype(np.float32)
W = (0.1 * RANDOM.normal(size=(16, 4))).astype(np.float32)


def by_policy(precision, w, **options):
    """Returns an optimizer and a step of one replica, by one argument."""
    optimizer = sg.train.Optimizer(
        optax.adam(0.01), precision=precision, gradient_reduction="mean", **options
    )

    def replica(x, y):
        def loss(x, y):
            return jnp.mean((x @ w - y) ** 2)

        value, gradient = optimizer.value_and_grad(loss, w)(x, y)
        optimizer.apply(gradient, w)
        return value

    return optimizer, replica


def by_hand(dtype, w, **options):
    """Returns the same with casts and loss scaling by hand."""
    optimizer = sg.train.Optimizer(optax.adam(0.01), gradient_reduction="mean", **options)
    optimizer.build(w)

    def replica(x, y):
        def loss():
            value = jnp.mean((x.astype(dtype) @ w.read_value().astype(dtype) - y) ** 2)
            return optimizer.scale_loss(value), value

        (_, value), gradient = sg.value_and_grad(loss, w, has_aux=True)()
        optimizer.apply(gradient, w)
        return value

    return optimizer, replica


def run(strategy, make, *, compiled=True, placement=contextlib.nullcontext, steps=2):
    with strategy.scope(), placement():
        w = sg.Variable(W, name="w")
    optimizer, replica = make(w)

    def step(x, y):
        return strategy.reduce("MEAN", strategy.run(replica, args=(x, y)), axis=None)

    step = sg.function(step) if compiled else step
    x, y = (
        strategy.experimental_distribute_values_from_function(
            lambda c, rows=rows: rows[c.replica_id_in_sync_group]
        )
        for rows in (X, Y)
    )
    return [float(step(x, y)) for _ in range(steps)], w, optimizer


def mirrored(num_devices=2, rules=None):
    return sg.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(num_devices)], sharding_rules=rules
    )


@pytest.mark.parametrize(
    ("precision", "dtype", "options"),
    [
        ("mixed_bfloat16", jnp.bfloat16, {}),
        ("mixed_float16", jnp.float16, {"loss_scale": "dynamic"}),
    ],
)
def test_a_policy_equals_casts_by_hand(precision, dtype, options):
    losses, w, optimizer = run(mirrored(), lambda w: by_policy(precision, w))
    expected, v, other = run(mirrored(), lambda w: by_hand(dtype, w, **options))
    assert losses == expected
    np.testing.assert_array_equal(w.numpy(), v.numpy())
    assert {u.dtype.name for u in (w, *optimizer.variables)} <= {"float32", "int32"}
    assert [u.name for u in optimizer.variables] == [u.name for u in other.variables]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("place", ["eager", "sharded", "laid_out"])
def test_every_placement_computes_the_same(precision, place):
    def make(w):
        return by_policy(precision, w)

    expected, v, _ = run(mirrored(), make)
    if place == "sharded":
        placement = lambda: ex.FullySharded(min_size=1)  # noqa: E731
        losses, w, _ = run(mirrored(), make, placement=placement)
    elif place == "laid_out":
        rules = ex.ShardingRules({"w": ("tensor",)}, axes={"tensor": 2})
        losses, w, _ = run(mirrored(4, rules), make)
    else:
        losses, w, _ = run(mirrored(), make, compiled=False)
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    np.testing.assert_allclose(w.numpy(), v.numpy(), rtol=1e-2, atol=1e-3)


def test_what_is_cast():
    kernel = sg.Variable(np.ones(3, np.float32), name="dense/kernel")
    scale = sg.Variable(np.ones(3, np.float32), name="norm/scale")
    count = sg.Variable(3, name="count")
    policy = sg.train.PrecisionPolicy("bfloat16", keep="norm")
    optimizer = sg.train.Optimizer(optax.sgd(1.0), precision=policy)
    seen = {}

    def loss(inputs, target):
        arrays = {"kernel": kernel.read_value(), "row": kernel[0], "scale": scale.read_value()}
        arrays |= {"count": count.read_value(), **inputs, "target": target}
        seen.update({name: array.dtype.name for name, array in arrays.items()})
        count.assign_add(1)
        return jnp.sum(kernel * inputs["x"]) + jnp.sum(scale), {"kept": kernel.read_value()}

    args = {"x": jnp.ones(3), "ids": jnp.ones(3, int)}, jnp.ones(3)
    run = optimizer.value_and_grad(loss, {"k": kernel, "s": scale}, has_aux=True)
    (value, aux), gradients = run(*args)
    half, full = "bfloat16", "float32"
    assert seen == {
        "kernel": half,
        "row": half,
        "scale": full,
        "count": "int32",
        "x": half,
        "ids": "int32",
        "target": full,
    }
    assert (value.dtype, aux["kept"].dtype, int(count)) == (full, half, 4)
    assert [g.dtype.name for g in gradients.values()] == [full, full]
    assert kernel.read_value().dtype == full
    optimizer.value_and_grad(loss, kernel, has_aux=True, cast_argnums=1)(*args)
    assert (seen["x"], seen["target"]) == (full, half)


def test_small_gradients_do_not_underflow_and_are_never_scaled_outside():
    w = sg.Variable(np.ones(2, np.float32))

    def loss(x):
        return jnp.sum((w * x).astype(jnp.float32)) * 1e-8

    scaled = sg.train.Optimizer(optax.sgd(1.0), precision="mixed_float16")
    x = jnp.full(2, 0.5)
    value, gradient = scaled.value_and_grad(loss, w)(x)
    np.testing.assert_allclose(value, 1e-8, rtol=1e-5)
    np.testing.assert_allclose(gradient, 5e-9, rtol=1e-2)
    unscaled = sg.train.PrecisionPolicy("float16")
    _, lost = sg.train.Optimizer(optax.sgd(1.0), precision=unscaled).value_and_grad(loss, w)(x)
    np.testing.assert_array_equal(lost, 0)  # why there is a loss scale
    scaled.apply(np.ones(2, np.float32), w)  # a gradient that somebody else computed
    np.testing.assert_array_equal(w.numpy(), 0)


def test_a_step_that_overflows_is_skipped():
    w = sg.Variable(np.ones(2, np.float32))
    optimizer = sg.train.Optimizer(optax.sgd(1.0), precision="mixed_float16")

    @sg.function
    def step(x):
        value, gradient = optimizer.value_and_grad(lambda x: jnp.sum(w * x), w)(x)
        optimizer.apply(gradient, w)
        return value

    assert float(step(jnp.full(2, 3e4))) == 6e4
    np.testing.assert_array_equal(w.numpy(), 1)
    [scale] = [v for v in optimizer.variables if "loss_scale" in v.name]
    assert (float(scale), int(optimizer.iterations)) == (2.0**14, 0)


@pytest.mark.parametrize("own", [True, False])
def test_a_precision_in_which_nothing_is_computed_is_noticed_once(caplog, monkeypatch, own):
    monkeypatch.setattr(precision_policy, "_computed_in", set())
    monkeypatch.setattr(precision_policy, "_warned", set())
    w = sg.Variable(jnp.ones(3))
    for policy in ("mixed_bfloat16", "float32"):
        optimizer = sg.train.Optimizer(optax.sgd(0.1), precision=policy)
        differentiate = optimizer.value_and_grad if own else sg.value_and_grad
        for _ in range(2):
            optimizer.apply(differentiate(lambda: jnp.sum(w.value()), w)()[1], w)
    assert ["its value_and_grad was not used" in text for text in caplog.messages] == [True] * (
        not own
    )


def test_refused_policies():
    with pytest.raises(ValueError, match="or a PrecisionPolicy, got 'half'"):
        sg.train.Optimizer(optax.sgd(1.0), precision="half")
    with pytest.raises(ValueError, match="floating-point dtype, got int32"):
        sg.train.PrecisionPolicy("int32")
    w = sg.Variable(1.0)
    optimizer = sg.train.Optimizer(optax.sgd(1.0), precision="mixed_float16")
    with pytest.raises(ValueError, match="has a precision policy, whose value_and_grad scales"):
        optimizer.scale_loss(1.0)
    with pytest.raises(ValueError, match=r"got \[2\] for 1 of them"):
        optimizer.value_and_grad(lambda x: w * x, w, cast_argnums=2)(1.0)
