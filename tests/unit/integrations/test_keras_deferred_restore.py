"""A checkpoint is restored into a model and an optimizer that are not built yet."""

import gc

import numpy as np
import pytest

import stratagem as tf

keras = tf.keras
X = np.linspace(0, 1, 24, dtype=np.float32).reshape(8, 3)


class Program:
    """A program from its first line on: its model and its optimizer are built by the first step."""

    def __init__(self, units=2):
        self.strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with self.strategy.scope():
            self.model = keras.Sequential([keras.layers.Dense(units), keras.layers.Dense(1)])
            self.optimizer = keras.optimizers.Adam(0.1)
        self.checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer)
        self.step = tf.function(self._step)

    def _replica_step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.model(x, training=True) ** 2)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return loss

    def _step(self):
        return self.strategy.reduce("MEAN", self.strategy.run(self._replica_step, args=(X,)))

    def losses(self):
        return [float(self.step()) for _ in range(3)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint after three steps, and the losses of the next three."""
    program = Program()
    program.checkpoint.restore(None)  # as at the first start
    with pytest.raises(tf.errors.InvalidArgumentError, match="not built"):
        program.checkpoint.save(tmp_path_factory.mktemp("early") / "ckpt")
    program.losses()
    path = program.checkpoint.save(tmp_path_factory.mktemp("saved") / "ckpt")
    program.checkpoint.sync()
    return path, program.losses()


def test_in_a_compiled_step(saved):
    path, expected = saved
    program = Program()
    status = program.checkpoint.restore(path)
    with pytest.raises(AssertionError):
        status.assert_consumed()  # not yet
    np.testing.assert_allclose(program.losses(), expected, rtol=1e-5)
    assert int(program.optimizer.iterations) == 6


@pytest.mark.parametrize("call", [lambda model: model(X), lambda model: tf.function(model)(X)])
def test_without_a_strategy(saved, call):
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
    tf.train.Checkpoint(model=model).restore(saved[0])
    assert float(np.mean(np.square(call(model)))) == pytest.approx(saved[1][0], rel=1e-5)


def test_in_fit(saved):
    path, _ = saved
    program = Program()
    program.checkpoint.restore(path)
    program.model.compile(program.optimizer, loss="mse")
    program.model.fit(X, X[:, :1], epochs=1, batch_size=8, verbose=0)
    assert int(program.optimizer.iterations) == 4


def test_what_does_not_fit_raises_when_it_is_built(saved):
    program = Program(units=5)
    program.checkpoint.restore(saved[0])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"model/0000 is float32\[3, 5\]"):
        program.model(X)
    with pytest.raises(tf.errors.NotFoundError, match="'other'"):
        tf.train.Checkpoint(other=keras.Sequential([keras.layers.Dense(1)])).restore(saved[0])


def test_what_waits_does_not_live_longer_than_the_object(saved):
    from stratagem._src.integrations.keras import checkpoints

    gc.collect()
    before = len(checkpoints._waiting)
    program = Program()
    program.checkpoint.restore(saved[0])
    assert len(checkpoints._waiting) == before + 2
    del program
    gc.collect()
    assert len(checkpoints._waiting) == before
