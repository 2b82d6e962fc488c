"""Keras layers, losses, metrics and optimizers inside ``strategy.run``."""

import numpy as np
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


@pytest.fixture
def many():
    return STRATEGIES["mirrored2"]()


@pytest.fixture(params=MODES)
def compiled(request):
    """Makes a function of a Python function, or leaves it."""
    return MODES[request.param]


# Eagerly every operation of Keras is a program of its own to compile.
eagerly_in_breadth = pytest.mark.parametrize(
    "compiled", [pytest.param("eager", marks=pytest.mark.slow), "compiled"], indirect=True
)


def test_batch_statistics_are_averaged_over_the_replicas(many, compiled):
    with many.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, 5))
    x = data(1)[0][0]

    @compiled
    def step(x):
        return many.run(lambda x: layer(x, training=True), args=(x,))

    step(parts(many, x))
    halves = np.split(x, 2)
    np.testing.assert_allclose(
        layer.moving_mean.value, np.mean([h.mean(0) for h in halves], 0) / 2, rtol=1e-5
    )
    np.testing.assert_allclose(
        layer.moving_variance.value, (1 + np.mean([h.var(0) for h in halves], 0)) / 2, rtol=1e-5
    )


def test_replicas_drop_other_elements_and_the_same_in_each_run(many, compiled):
    def masks():
        with many.scope():
            layer = keras.layers.Dropout(0.5, seed=7)

        @compiled
        def step(x):
            return many.run(lambda x: layer(x, training=True), args=(x,))

        drawn = [step(parts(many, np.ones((GLOBAL_BATCH, 16)))) for _ in range(2)]
        assert layer.seed_generator.state.value.tolist() == [7, 2]
        return [np.asarray(part) for step_masks in drawn for part in step_masks.values]

    first, again = masks(), masks()
    assert len({mask.tobytes() for mask in first}) == 4
    np.testing.assert_array_equal(first, again)
    assert all(0.3 < mask.mean() / 2 < 0.7 for mask in first)


@eagerly_in_breadth
def test_seeds_inside_gradients(many, compiled):
    with many.scope():
        layer = keras.layers.Dropout(0.5, seed=7)
        weight = keras.Variable(1.0)

    @compiled
    def step(x):
        loss = sg.value_and_grad(lambda x: keras.ops.sum(layer(x * weight, training=True)), weight)
        return many.run(lambda x: loss(x)[1], args=(x,))

    drawn = step(parts(many, np.ones((GLOBAL_BATCH, 16))))
    assert layer.seed_generator.state.value.tolist() == [7, 1]
    one, other = map(float, drawn.values)
    assert one != other


@eagerly_in_breadth
def test_metrics_combine_over_replicas(many, compiled):
    with many.scope():
        mean = keras.metrics.Mean()
        auc = keras.metrics.AUC(num_thresholds=20)
    alone = keras.metrics.AUC(num_thresholds=20)
    scores = np.linspace(0, 1, GLOBAL_BATCH, dtype="float32")
    labels = (np.arange(GLOBAL_BATCH) % 3 == 0).astype("float32")

    def replica_step(x, y):
        mean.update_state(x)
        auc.update_state(y, x)
        return mean.result()

    @compiled
    def step(x, y):
        return many.run(replica_step, args=(x, y))

    own = step(parts(many, scores), parts(many, labels))
    alone.update_state(labels, scores)
    halves = [half.mean() for half in np.split(scores, 2)]
    np.testing.assert_allclose(np.asarray(own.values), halves, rtol=1e-5)
    assert float(mean.result()) == pytest.approx(0.5)
    assert float(auc.result()) == pytest.approx(float(alone.result()), abs=1e-6)
    mean.update_state([4.5])  # outside of replicas, too
    assert float(mean.result()) == pytest.approx((4 + 4.5) / 9)

    @compiled
    def reset():
        many.run(mean.reset_state)

    reset()
    assert [float(v.value) for v in mean.variables] == [0, 0]


class Smoothed(keras.metrics.Metric):
    """Counts from a first value that is not zero."""

    def __init__(self):
        super().__init__()
        self.count = self.add_variable((2,), initializer="ones", name="count")

    def update_state(self, x):
        self.count.assign_add(keras.ops.sum(x, axis=0))

    def result(self):
        return self.count


def test_the_first_value_of_a_metric_counts_once(many, compiled):
    with many.scope():
        metric = Smoothed()
        given = metric.add_variable(
            (2,), lambda shape, dtype: np.array([5, 7], dtype), "int32", name="given"
        )
        highest = metric.add_variable((), keras.initializers.Constant(3.0), aggregation="mean")
    assert np.asarray(metric.result()).tolist() == [1, 1]
    assert np.asarray(given.value).tolist() == [5, 7]
    assert float(highest.value) == 3

    @compiled
    def step(x):
        many.run(metric.update_state, args=(x,))

    step(parts(many, np.ones((GLOBAL_BATCH, 2), "float32")))
    assert np.asarray(metric.result()).tolist() == [1 + GLOBAL_BATCH] * 2


class Counting(keras.layers.Layer):
    """Counts examples, and says how replicas' counts become one."""

    def __init__(self, aggregation):
        super().__init__()
        self.count = self.add_weight(
            shape=(), initializer="zeros", dtype="int32", trainable=False, aggregation=aggregation
        )

    def call(self, x):
        self.count.assign_add(x.shape[0])
        return x


def test_state_of_layers_is_aggregated_as_they_say(many, compiled):
    with many.scope():
        layer, silent = Counting("sum"), Counting(None)
    x = parts(many, data(1)[0][0])
    compiled(lambda: many.run(layer, args=(x,)))()
    assert int(layer.count.value) == GLOBAL_BATCH
    with pytest.raises(sg.errors.VariableError, match=r"add_weight\(..., aggregation='mean'\)"):
        compiled(lambda: many.run(silent, args=(x,)))()
    assert int(silent.count.value) == 0


@eagerly_in_breadth
def test_layers_are_built_once_when_replicas_call_them_first(many, compiled):
    with many.scope():
        model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(2)])
    x = data(1)[0][0]

    @compiled
    def step(x):
        return many.run(model, args=(x,))

    out = many.gather(step(parts(many, x)), axis=0)
    assert [v.shape for v in model.weights] == [(5, 3), (3,), (3, 2), (2,)]
    assert all(v.strategy is many for v in model.weights)
    np.testing.assert_allclose(out, model(x), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_recurrent_layers(many, compiled):
    with many.scope():
        model = keras.Sequential([keras.Input((6, 5)), keras.layers.LSTM(3)])
    x = np.random.default_rng(0).normal(size=(GLOBAL_BATCH, 6, 5)).astype("float32")
    gradient = sg.value_and_grad(lambda x: keras.ops.sum(model(x)), list(model.trainable_variables))

    @compiled
    def step(x):
        _, gradients = many.run(gradient, args=(x,))
        return many.reduce("SUM", gradients, axis=None)

    together = step(parts(many, x))
    for one, whole in zip(together, gradient(x)[1], strict=True):
        np.testing.assert_allclose(one, whole, rtol=1e-3, atol=1e-5)


@eagerly_in_breadth
def test_mixed_precision(many, compiled):
    with many.scope():
        layer = keras.layers.Dense(2, dtype="mixed_float16")
        layer.build((None, 5))

    @compiled
    def step(x):
        def loss(x):
            out = layer(x)
            assert out.dtype == "float16"
            return keras.ops.sum(keras.ops.cast(out, "float32"))

        return many.run(sg.value_and_grad(loss, layer.trainable_variables), args=(x,))

    _, gradients = step(parts(many, data(1)[0][0]))
    assert [g.values[0].dtype for g in gradients] == ["float32", "float32"]
    assert layer.kernel.value.dtype == "float32"


@eagerly_in_breadth
def test_losses_that_layers_add_stay_in_their_replica_and_trace(many, compiled):
    with many.scope():
        model = keras.Sequential(
            [
                keras.Input((5,)),
                keras.layers.ActivityRegularization(l1=1.0),
                keras.layers.BatchNormalization(),
            ]
        )

    def replica_step(x):
        model(x, training=True)  # the replicas meet in it
        return keras.ops.sum(model.losses[0])

    x = np.abs(data(1)[0][0])
    added = compiled(lambda x: many.run(replica_step, args=(x,)))(parts(many, x))
    expected = [half.sum() / len(half) for half in np.split(x, 2)]
    np.testing.assert_allclose(np.asarray(added.values), expected, rtol=1e-5)
    assert model.losses == []


def test_a_step_that_fails_leaves_everything_as_it_was(many, compiled):
    with many.scope():
        model = keras.layers.BatchNormalization()
        model.build((None, 5))
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        mean = keras.metrics.Mean()
    before = [np.asarray(v.value) for v in model.variables]

    def replica_step(x):
        loss, gradients = sg.value_and_grad(
            lambda: keras.ops.sum(model(x, training=True)), model.trainable_variables
        )()
        mean.update_state(loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        raise ZeroDivisionError

    step = compiled(lambda x: many.run(replica_step, args=(x,)))
    with pytest.raises(ZeroDivisionError):
        step(parts(many, data(1)[0][0]))
    assert_no_tracers(model, optimizer, mean)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.value, value)
    assert int(optimizer.iterations) == 0
    assert float(mean.count.value) == 0


def test_weights_are_not_assigned_by_one_replica(many, compiled):
    with many.scope():
        layer = keras.layers.Dense(1)
        layer.build((None, 5))

    def replica_step():
        layer.kernel.assign(keras.ops.ones((5, 1)))

    with pytest.raises(sg.errors.VariableError, match="needs an aggregation"):
        compiled(lambda: many.run(replica_step))()


FOREIGN = r"created outside of the scope.*Create the model, its optimizer and its metrics inside"


def test_models_of_no_scope_are_refused(many, compiled):
    layer = keras.layers.Dense(1)
    layer.build((None, 5))
    with pytest.raises(sg.errors.ContextError, match=FOREIGN):
        compiled(lambda: many.run(lambda: layer(np.ones((2, 5)))))()
    metric = keras.metrics.Mean()
    with pytest.raises(sg.errors.ContextError, match=FOREIGN):
        compiled(lambda: many.run(lambda: metric.update_state(1.0)))()
    with many.scope():
        placed = keras.layers.Dense(1)
        placed.build((None, 5))
    optimizer = keras.optimizers.SGD()
    gradients = [np.ones((5, 1)), np.ones(1)]
    with pytest.raises(sg.errors.ContextError, match="must be created in one scope"):
        compiled(lambda: many.run(lambda: optimizer.apply(gradients, placed.weights)))()


def test_models_of_another_scope_are_refused(many, compiled):
    with sg.distribute.OneDeviceStrategy("CPU:1").scope():
        layer = keras.layers.Dense(1)
        layer.build((None, 5))
        optimizer = keras.optimizers.SGD()
    with pytest.raises(sg.errors.ContextError, match="belongs to <OneDeviceStrategy"):
        compiled(lambda: many.run(lambda: layer(np.ones((2, 5)))))()
    gradients = [np.ones((5, 1)), np.ones(1)]
    with pytest.raises(sg.errors.ContextError, match="cannot be used in a replica of"):
        compiled(lambda: many.run(lambda: optimizer.apply(gradients, layer.weights)))()


def test_optimizers_outside_of_replicas_take_reduced_gradients(many):
    with many.scope():
        layer = keras.layers.Dense(1, use_bias=False)
        layer.build((None, 5))
        optimizer = keras.optimizers.SGD(0.5)
    gradient = sg.value_and_grad(lambda x: keras.ops.sum(layer(x)), layer.trainable_variables)
    x = data(1)[0][0]
    _, gradients = many.run(gradient, args=(parts(many, x),))
    with pytest.raises(sg.errors.NotAnArrayError, match="Reduce it first"):
        optimizer.apply(gradients, layer.trainable_variables)
    assert int(optimizer.iterations) == 0
    before = np.asarray(layer.kernel.value)
    optimizer.apply(many.reduce("SUM", gradients, axis=None), layer.trainable_variables)
    after = before - 0.5 * x.sum(0)[:, None]
    np.testing.assert_allclose(layer.kernel.value, after, rtol=1e-4, atol=1e-6)


def test_learning_rates_are_inputs_of_compiled_steps(many):
    with many.scope():
        weight = keras.Variable(0.0)
        optimizer = keras.optimizers.SGD(1.0)

    @sg.function
    def step():
        many.run(lambda: optimizer.apply([keras.ops.ones(())], [weight]))

    step()
    optimizer.learning_rate = 0.25
    step()
    assert float(weight.value) == -2 * (1 + 0.25)


class OwnError(keras.metrics.Mean):
    """A metric of one's own, defined after Keras was loaded."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(keras.ops.mean(abs(y_true - y_pred)), sample_weight)


@pytest.mark.parametrize("kind", [keras.metrics.MeanSquaredError, OwnError])
def test_a_replica_without_rows_leaves_a_metric_as_it_is(many, compiled, kind):
    """Of vectors Keras counts the mean of a batch as one sample: so does each replica."""
    y = np.arange(5, dtype="float32")
    p = y + np.array([1, 2, 3, 4, 5], "float32")
    alone = kind()
    for part in (slice(0, 2), slice(2, 4), slice(4, 5)):
        alone.update_state(y[part], p[part])
    with many.scope():
        metric = kind()
    update = compiled(lambda batch: many.run(metric.update_state, args=batch))
    dataset = sg.data.Dataset.from_tensor_slices((y, p)).batch(4)
    for batch in many.experimental_distribute_dataset(dataset):
        update(batch)
    assert float(metric.count) == 3
    assert float(metric.result()) == pytest.approx(float(alone.result()))


def test_keras_optimizers_update_variables_that_are_not_of_keras(many, compiled):
    with many.scope():
        w = sg.Variable(1.0, name="w")
        optimizer = keras.optimizers.SGD(0.5, momentum=0.5)
        optimizer.build([w])
    step = compiled(lambda: many.run(lambda: optimizer.apply_gradients([(np.float32(1), w)])))
    step()
    step()
    replicas = many.num_replicas_in_sync  # whose gradients are summed
    assert float(w) == pytest.approx(1 - 0.5 * replicas * (1 + 1.5))
    assert len(optimizer.variables) == 3  # the view of w is not the optimizer's own


def test_a_gradient_of_another_shape_is_refused_by_name(many, compiled):
    with many.scope():
        model, optimizer = small_model(), keras.optimizers.SGD(0.1)
    before = model.get_weights()
    kernel, bias = model.trainable_variables

    @compiled
    def step():
        gradients = [np.ones((5, 1), "float32"), np.ones((3, 1), "float32")]
        many.run(lambda: optimizer.apply(gradients, [kernel, bias]))

    with pytest.raises(ValueError, match=r"got \(3, 1\) for '.*/bias' of shape \(1,\)"):
        step()
    for value, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, old)


def test_the_seed_of_keras_is_that_of_tf_random():
    drawn = []
    for _ in range(2):
        keras.utils.set_random_seed(3)
        drawn.append(np.asarray(sg.random.uniform([2])))
    np.testing.assert_array_equal(*drawn)
