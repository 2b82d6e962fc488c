"""``tf.random`` in layers and steps of Keras: new numbers in each step and row, the same for a seed."""

import jax
import numpy as np
import pytest
from keras_training import KERAS_ARRAYS, assert_same, keras, mirrored, scope_of

import stratagem as sg

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAYS)

X = np.ones((16, 4), np.float32)
OPTIONS = [{}, {"run_eagerly": True}, {"steps_per_execution": 2}]


class Noise(keras.layers.Layer):
    def call(self, x):
        return 0 * x + sg.random.normal(sg.shape(x)) + 100 * sg.random.uniform(sg.shape(x), seed=3)


class Drop(keras.layers.Layer):
    def call(self, x, training=False):
        return sg.nn.dropout(x, 0.5) if training else x


class Recorder(keras.Model):
    """Records the noise of its first steps in a weight."""

    def __init__(self, in_loop=False):
        super().__init__()
        self.noises = self.add_weight(shape=(4,), initializer="zeros", trainable=False)
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.in_loop = in_loop

    def call(self, x):
        return x

    def train_step(self, data):
        if self.in_loop:
            noise = jax.lax.map(lambda _: sg.random.normal([]), np.zeros(2))[0]
        else:
            noise = sg.random.normal([])
        index = sg.cast(self.count, sg.int32)
        self.noises.assign(self.noises + noise * sg.one_hot(index, 4))
        self.count.assign_add(1.0)
        return {"noise": noise}


def layered(strategy, *layers, **options):
    with scope_of(strategy):
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile("sgd", "mse", **options)
    return model


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("replicas", [None, 1, 2])
def test_each_step_row_and_call_draws_its_own_numbers(replicas, options):
    model = layered(None if replicas is None else mirrored(replicas), Noise(), **options)

    def draw():
        sg.random.set_seed(5)
        calls = [model.predict(X, batch_size=4, verbose=0) for _ in range(2)]
        return np.stack([*calls, model.predict_on_batch(X)])

    first = draw()
    assert len(np.unique(first)) == first.size
    np.testing.assert_array_equal(draw(), first)
    assert not np.isin(model.predict(X, verbose=0), first).any()


def test_the_seed_decides():
    model = layered(mirrored(2), Noise())
    sg.random.set_seed(5)
    first = model.predict(X, verbose=0)
    sg.random.set_seed(6)
    assert not np.isin(model.predict(X, verbose=0), first).any()


@pytest.mark.parametrize("make", [mirrored, lambda n: sg.distribute.OneDeviceStrategy("CPU:0")])
def test_models_with_noise_train_as_without_a_strategy(make):
    def train(strategy):
        model = layered(strategy, keras.layers.Dense(3), Drop(), Noise(), keras.layers.Dense(1))
        history = model.fit(X, X[:, :1], batch_size=6, epochs=2, shuffle=False, verbose=0)
        return history.history, model.evaluate(X, X[:, :1], verbose=0), model.get_weights()

    assert_same(train, make(2), rtol=1e-4)


@pytest.mark.parametrize("replicas", [None, 2])
def test_a_step_with_data_alone_draws_new_numbers(replicas):
    with scope_of(None if replicas is None else mirrored(replicas)):
        model = Recorder()
        model.compile("sgd")
    model.fit(X, batch_size=4, verbose=0)
    noises = model.noises.numpy() if replicas else np.asarray(model.noises)
    assert len(np.unique(noises)) == 4
    assert np.all(noises != 0)


def test_dropout_keeps_other_elements_in_each_replica_and_step():
    class AlwaysDrop(keras.layers.Layer):
        def call(self, x):
            return sg.nn.dropout(x, 0.5)

    model = layered(mirrored(2), AlwaysDrop())
    drawn = model.predict(np.ones((64, 4)), batch_size=32, verbose=0)
    assert set(np.unique(drawn)) == {0.0, 2.0}
    # Two steps of two replicas.
    assert len(np.unique(drawn.reshape(4, -1), axis=0)) == 4


@pytest.mark.parametrize("replicas", [None, 2])
def test_a_draw_in_a_loop_of_the_step_is_refused(replicas):
    with scope_of(None if replicas is None else mirrored(replicas)):
        model = Recorder(in_loop=True)
        model.compile("sgd")
    with pytest.raises(sg.errors.ContextError, match="not inside such a transformation"):
        model.fit(X, batch_size=4, verbose=0)


def test_a_generator_advances_by_one_key_in_each_step():
    generator = sg.random.Generator.from_seed(1)

    class Draw(keras.layers.Layer):
        def call(self, x):
            return 0 * x + generator.normal(sg.shape(x))

    model = layered(mirrored(2), Draw())
    state = np.asarray(generator.state)
    drawn = model.predict(X, batch_size=4, verbose=0)
    assert len(np.unique(drawn)) == drawn.size
    assert np.asarray(generator.state)[2] == state[2] + 4
    generator.state.assign(state)
    np.testing.assert_array_equal(model.predict(X, batch_size=4, verbose=0), drawn)
