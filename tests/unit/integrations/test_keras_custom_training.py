"""Keras in a loop of one's own gives what Keras alone gives on one device with the whole batch."""

import functools

import jax
import numpy as np
import optax
import pytest
from keras_settings import (
    GLOBAL_BATCH,
    MODES,
    STRATEGIES,
    assert_no_tracers,
    data,
    parts,
    small_model,
)

import stratagem as sg

keras = sg.keras

EVERYDAY = {("default", "compiled"), ("mirrored2", "eager"), ("mirrored2", "compiled")}


@pytest.fixture(
    params=[
        pytest.param(
            (name, mode),
            id=f"{name}-{mode}",
            marks=[] if (name, mode) in EVERYDAY else [pytest.mark.slow],
        )
        for name in STRATEGIES
        for mode in ("eager", "compiled")
    ]
)
def setting(request):
    """A strategy, and what makes a function of a Python function, or leaves it."""
    name, mode = request.param
    return STRATEGIES[name](), MODES[mode]


def train(strategy, compiled, make_model, make_optimizer, steps=3):
    """Returns the objects of a custom loop after some steps, and its losses."""
    with strategy.scope():
        model = make_model()
        optimizer = make_optimizer()
        seen = keras.metrics.Mean()
        accuracy = keras.metrics.BinaryAccuracy(threshold=0.0)
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")

    def replica_step(x, y):
        def loss_fn():
            logits = model(x, training=True)
            loss = loss_of(y, logits)
            accuracy.update_state(y, logits)
            total = keras.ops.sum(loss) / GLOBAL_BATCH
            return optimizer.scale_loss(total), loss

        (_, loss), gradients = sg.value_and_grad(loss_fn, model.trainable_variables, has_aux=True)()
        optimizer.apply(gradients, model.trainable_variables)
        seen.update_state(loss)
        return keras.ops.sum(loss) / GLOBAL_BATCH

    @compiled
    def step(x, y):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    losses = []
    for x, y in zip(*data(steps), strict=True):
        losses.append(float(step(parts(strategy, x), parts(strategy, y))))
    return model, optimizer, seen, accuracy, losses


def reference(make_model, make_optimizer, steps=3):
    """The same with Keras alone, on the whole batch."""
    model, optimizer = make_model(), make_optimizer()
    accuracy = keras.metrics.BinaryAccuracy(threshold=0.0)
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)

    def loss_fn(trained, others, own, x, y):
        logits, others = model.stateless_call(trained, others, x, training=True)
        loss = loss_of(y, logits)
        with keras.StatelessScope(zip(optimizer.variables, own, strict=True)):
            return optimizer.scale_loss(loss), (others, logits, loss)

    @jax.jit
    def step(trained, others, own, counted, x, y):
        (_, (others, logits, loss)), gradients = jax.value_and_grad(loss_fn, has_aux=True)(
            trained, others, own, x, y
        )
        trained, own = optimizer.stateless_apply(own, gradients, trained)
        return trained, others, own, accuracy.stateless_update_state(counted, y, logits), loss

    holders = [
        model.trainable_variables,
        model.non_trainable_variables,
        optimizer.variables,
        accuracy.variables,
    ]
    values = [[v.value for v in variables] for variables in holders]
    losses = []
    for x, y in zip(*data(steps), strict=True):
        *values, loss = step(*values, x, y)
        losses.append(float(loss))
    for variables, new in zip(holders, values, strict=True):
        for variable, value in zip(variables, new, strict=True):
            variable.assign(value)
    return model, optimizer, accuracy, losses


def assert_equal_weights(these, others):
    for this, other in zip(these, others, strict=True):
        np.testing.assert_allclose(
            np.asarray(this.value), np.asarray(other.value), rtol=2e-4, atol=2e-6
        )


OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "sgd_all": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
        momentum=0.9,
        global_clipnorm=0.5,
        weight_decay=0.01,
        use_ema=True,
        ema_overwrite_frequency=2,
    ),
    "accumulating": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), dynamic_growth_steps=2
    ),
}


@functools.cache
def reference_of(kind):
    return reference(small_model, OPTIMIZERS[kind])


@pytest.mark.parametrize(
    "kind",
    [
        name if name == "momentum" else pytest.param(name, marks=pytest.mark.slow)
        for name in OPTIMIZERS
    ],
)
def test_training_equals_one_device_with_the_whole_batch(setting, kind):
    model, optimizer, seen, accuracy, losses = train(*setting, small_model, OPTIMIZERS[kind])
    alone, optimizer_alone, accuracy_alone, losses_alone = reference_of(kind)
    np.testing.assert_allclose(losses, losses_alone, rtol=1e-4)
    assert_equal_weights(model.weights, alone.weights)
    assert_equal_weights(optimizer.variables, optimizer_alone.variables)
    assert int(optimizer.iterations) == int(optimizer_alone.iterations)
    assert float(accuracy.result()) == pytest.approx(float(accuracy_alone.result()))
    assert float(seen.result()) == pytest.approx(np.mean(losses_alone), rel=1e-4)
    assert_no_tracers(model, optimizer, accuracy)
    accuracy.reset_state()
    assert float(accuracy.count) == 0


def test_fit_and_a_loop_of_ones_own_go_on_with_the_same_state():
    strategy = STRATEGIES["mirrored2"]()
    x, y = data(4)
    rows = [a.reshape(-1, a.shape[-1]) for a in (x, y)]

    def compiled_model():
        model = small_model()
        model.compile(keras.optimizers.Adam(0.05), "mse")
        return model

    with strategy.scope():
        model = compiled_model()

    @sg.function
    def step(x, y):
        def replica_step(x, y):
            gradients = sg.value_and_grad(
                lambda: keras.ops.sum((model(x, training=True) - y) ** 2) / GLOBAL_BATCH,
                model.trainable_variables,
            )()[1]
            model.optimizer.apply(gradients, model.trainable_variables)

        strategy.run(replica_step, args=(x, y))

    fit = {"batch_size": GLOBAL_BATCH, "shuffle": False, "verbose": 0}
    model.fit(*rows, **fit)
    for pair in zip(x, y, strict=True):
        step(*(parts(strategy, part) for part in pair))
    last = model.fit(*rows, **fit)
    alone = compiled_model()
    expected = alone.fit(*rows, epochs=3, **fit)
    assert last.history["loss"][0] == pytest.approx(expected.history["loss"][2], rel=1e-4)
    assert int(model.optimizer.iterations) == 12
    assert_equal_weights(model.weights, alone.weights)


def test_optax_trains_keras_layers():
    strategy = STRATEGIES["mirrored2"]()
    with strategy.scope():
        model = small_model()
        optimizer = sg.train.Optimizer(optax.sgd(0.5))
    before = np.asarray(model.weights[0].value)
    x = data(1)[0][0]

    @sg.function
    def step(x):
        def replica_step(x):
            gradients = sg.value_and_grad(
                lambda: keras.ops.sum(model(x)), model.trainable_variables
            )()[1]
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        strategy.run(replica_step, args=(x,))

    step(parts(strategy, x))
    after = before - 0.5 * x.sum(0)[:, None]
    np.testing.assert_allclose(model.weights[0].value, after, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("options", "step"),
    [
        ({}, 4.0),
        ({"skip_gradients_aggregation": True}, 2.0),
        ({"experimental_aggregate_gradients": False}, 2.0),
    ],
)
def test_gradients_that_the_replicas_have_summed_are_not_summed_again(options, step, compiled):
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        layer = keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False)
        layer.build((None, 1))
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build(layer.trainable_variables)

    def replica_step():
        gradient = sg.distribute.get_replica_context().all_reduce("SUM", np.ones((1, 1), "float32"))
        optimizer.apply_gradients([(gradient, layer.kernel)], **options)

    def run():
        strategy.run(replica_step)

    (sg.function(run) if compiled else run)()
    assert layer.kernel.numpy().tolist() == [[-step]]
    assert int(optimizer.iterations.numpy()) == 1
