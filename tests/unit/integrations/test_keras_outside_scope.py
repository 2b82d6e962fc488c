"""What a model of a strategy gets after its scope has been left belongs to the strategy, too."""

import jax
import numpy as np
import pytest
from keras_training import KERAS_ARRAYS, assert_same, keras, make_data, mirrored, scope_of

pytestmark = pytest.mark.filterwarnings(
    KERAS_ARRAYS, "ignore:Layer InputLayer does not have a `quantize` method:UserWarning"
)

X, Y = make_data()


def make(strategy):
    with scope_of(strategy):
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(4, name="inner"), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    return model


def trained(model):
    model.compile("sgd", "mse")
    history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0).history
    return history, model.get_weights(), model.predict(X, verbose=0)


def with_lora(strategy):
    model = make(strategy)
    model.get_layer("inner").enable_lora(2)
    return trained(model)


def with_layers_added(strategy):
    model = make(strategy)
    model.add(keras.layers.Dropout(0.5, seed=3))  # has a variable before it is built
    model.add(keras.layers.Dense(1))
    return trained(model)


def with_other_last_layer(strategy):
    model = make(strategy)
    trained(model)
    model.pop()
    model.add(keras.layers.Dense(1, kernel_initializer="ones"))
    return trained(model)


def built_late(strategy):
    with scope_of(strategy):
        model = keras.Sequential([keras.layers.Dense(4), keras.layers.BatchNormalization()])
    model.add(keras.layers.Dropout(0.5, seed=3))
    model.add(keras.layers.Dense(1))
    model.build((None, 3))
    return trained(model)


class Own(keras.Model):
    """Gets a layer with its first call, and one from outside."""

    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(4)
        self.last = None

    def build(self, shape):
        self.last = keras.layers.Dense(1, name="last")
        self.last.build((None, 4))
        self.scale = keras.Variable(2.0, name="scale")

    def call(self, x, training=False):
        return self.last(self.dropout(self.first(x), training=training)) * self.scale


def with_layers_of_its_own(strategy):
    with scope_of(strategy):
        model = Own()
    model.dropout = keras.layers.Dropout(0.5, seed=3)
    model(X)
    return trained(model)


@pytest.mark.parametrize(
    "train",
    [
        with_lora,
        pytest.param(with_layers_added, marks=pytest.mark.slow),
        pytest.param(with_other_last_layer, marks=pytest.mark.slow),
        pytest.param(built_late, marks=pytest.mark.slow),
        pytest.param(with_layers_of_its_own, marks=pytest.mark.slow),
    ],
)
def test_new_variables_are_the_strategys(train):
    assert_same(train, mirrored(2))


@pytest.mark.slow
def test_a_model_is_quantized():
    def predicted(strategy):
        model = make(strategy)
        model.quantize("int8")
        return model.predict(X, verbose=0), model.get_weights()

    assert_same(predicted, mirrored(2))


def test_optimizers_and_metrics_create_their_variables_where_they_were_made():
    strategy = mirrored(2)
    with strategy.scope():
        optimizer, metric = keras.optimizers.Adam(0.5), keras.metrics.F1Score()
        layer = keras.layers.Dense(1)
    layer.build((None, 3))
    optimizer.build(layer.trainable_variables)
    metric.update_state(np.ones((4, 2), "float32"), np.ones((4, 2), "float32"))
    variables = [*layer.variables, *optimizer.variables, *metric.variables]
    assert len(variables) == 2 + 6 + 4
    assert all(variable.strategy is strategy for variable in variables)
    np.testing.assert_allclose(np.asarray(metric.result()), [1, 1])


def test_layers_of_another_model_are_not_taken_away():
    other = make(None)
    other(X)
    strategy = mirrored(2)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,))])
    model.add(other)
    model.add(keras.layers.Dense(1))
    with pytest.raises(RuntimeError, match="inner/kernel"):
        model.compile("sgd", "mse")
    assert np.isfinite(other.fit(X, Y, verbose=0).history["loss"]).all()


@pytest.mark.parametrize("device", [0, 1, 2])
@pytest.mark.parametrize("in_scope", [False, True])
def test_a_model_meets_arrays_that_are_committed_to_a_device(device, in_scope):
    strategy = mirrored(2)
    with strategy.scope():
        model = make(strategy)
        embedding = keras.layers.Embedding(5, 3, mask_zero=True)
        after = keras.layers.GlobalAveragePooling1D()
    x = jax.device_put(X, jax.devices()[device])
    with scope_of(strategy if in_scope else None):
        outputs = model(x)
    np.testing.assert_allclose(outputs, model(X))
    words = np.array([[1, 2, 0], [3, 0, 0]])
    embedded = embedding(words)
    one_device = keras.layers.Embedding(5, 3, mask_zero=True, weights=[embedding.get_weights()[0]])
    masked = one_device(jax.device_put(words, jax.devices()[device]))
    np.testing.assert_allclose(after(masked), after(embedded), rtol=1e-6)


class OfOneSize(keras.layers.Layer):
    """Equals others of its size, and has no hash before its ``__init__`` ends."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def __eq__(self, other):
        return isinstance(other, OfOneSize) and self.size == other.size

    def __hash__(self):
        return hash(self.size)

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], self.size))

    def call(self, x):
        return x @ self.w


def test_layers_that_are_equal_belong_to_the_strategies_that_created_them():
    strategies = [mirrored(2), mirrored(1)]
    layers = []
    for strategy in strategies:
        with strategy.scope():
            layers.append(OfOneSize(3))
    for layer, strategy in zip(layers, strategies, strict=True):
        layer.build((None, 2))
        assert layer.w.strategy is strategy
    with strategies[0].scope():
        model = keras.Sequential([OfOneSize(3), OfOneSize(3)])
        model.compile("sgd", "mse")
    assert len(model.fit(X, Y, epochs=2, verbose=0).history["loss"]) == 2
