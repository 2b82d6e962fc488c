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
        status.assert_consumed()
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


def test_what_exists_is_restored_at_once(saved):
    """A program decides from the iterations how many steps are left."""
    path, expected = saved
    program = Program()
    program.optimizer.learning_rate = 0.5
    status = program.checkpoint.restore(path).assert_existing_objects_matched()
    assert int(program.optimizer.iterations) == 3
    assert float(program.optimizer.learning_rate) == pytest.approx(0.1)
    with pytest.raises(AssertionError, match=r"first call or step: 'model': .*'optimizer/0002'"):
        status.assert_consumed()
    np.testing.assert_allclose(program.losses(), expected, rtol=1e-5)
    status.assert_consumed()


def test_a_change_after_the_restore_stays(saved):
    program = Program()
    program.checkpoint.restore(saved[0])
    program.optimizer.learning_rate = 0.025
    program.step()
    assert float(program.optimizer.learning_rate) == pytest.approx(0.025)
    assert int(program.optimizer.iterations) == 4


def test_what_exists_is_restored_without_a_strategy(tmp_path):
    def parts():
        w = tf.Variable([1.0, 2.0])
        return w, keras.optimizers.SGD(0.1, momentum=0.9)

    w, optimizer = parts()
    for _ in range(3):
        optimizer.apply_gradients([(tf.constant([1.0, 1.0]), w)])
    optimizer.learning_rate.assign(0.025)
    path = tf.train.Checkpoint(w=w, optimizer=optimizer).save(tmp_path / "ckpt")
    optimizer.apply_gradients([(tf.constant([1.0, 1.0]), w)])
    again, other = parts()
    status = tf.train.Checkpoint(w=again, optimizer=other).restore(path)
    assert (int(other.iterations), float(other.learning_rate)) == (3, pytest.approx(0.025))
    other.apply_gradients([(tf.constant([1.0, 1.0]), again)])
    np.testing.assert_allclose(again.numpy(), w.numpy(), rtol=1e-6)
    status.assert_consumed()


def test_a_loss_scale_optimizer_has_its_iterations_at_once(tmp_path):
    def parts():
        inner = keras.optimizers.SGD(0.1, momentum=0.9)
        return tf.Variable([1.0, 2.0]), keras.optimizers.LossScaleOptimizer(inner)

    w, optimizer = parts()
    optimizer.apply_gradients([(tf.constant([1.0, 1.0]), w)])
    optimizer.learning_rate = 0.025
    path = tf.train.Checkpoint(w=w, optimizer=optimizer).save(tmp_path / "ckpt")
    again, other = parts()
    tf.train.Checkpoint(w=again, optimizer=other).restore(path)
    assert (int(other.iterations), float(other.learning_rate)) == (1, pytest.approx(0.025))


def test_built_layers_of_an_unbuilt_model_are_restored_at_once(tmp_path):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = keras.layers.Dense(2), keras.layers.Dense(1)
            self.first.build((None, 3))

        def call(self, x):
            return self.second(self.first(x))

    model = Model()
    expected = model(X)
    path = tf.train.Checkpoint(model=model).save(tmp_path / "ckpt")
    again = Model()
    status = tf.train.Checkpoint(model=again).restore(path)
    np.testing.assert_array_equal(again.first.kernel, model.first.kernel)
    with pytest.raises(AssertionError, match=r"\['model/0002', 'model/0003'\]"):
        status.assert_consumed()
    np.testing.assert_array_equal(again(X), expected)
    status.assert_consumed()


def test_what_exists_and_does_not_fit_changes_nothing(saved, tmp_path):
    program = Program()
    path = tf.train.Checkpoint(optimizer={"0000": tf.Variable([7])}).save(tmp_path / "ckpt")
    kept = tf.Variable(1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="optimizer"):
        tf.train.Checkpoint(optimizer=program.optimizer).restore(path)
    with pytest.raises(tf.errors.NotFoundError, match="'kept'"):
        tf.train.Checkpoint(optimizer=program.optimizer, kept=kept).restore(saved[0])
    assert int(program.optimizer.iterations) == 0


@pytest.mark.parametrize("in_scope", [True, False])
@pytest.mark.parametrize(
    "make", [keras.metrics.F1Score, lambda: keras.metrics.AUC(multi_label=True, num_thresholds=5)]
)
def test_a_metric_that_its_first_update_builds(tmp_path, make, in_scope):
    """Metrics whose variables depend on the shape of the data."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    truth = np.eye(4, dtype=np.float32)[[0, 1, 2, 3]]
    guess = np.eye(4, dtype=np.float32)[[0, 1, 3, 3]] * 0.5 + 0.1

    def made():
        if not in_scope:
            return make()
        with strategy.scope():
            return make()

    def update(metric, guess):
        if not in_scope:
            metric.update_state(truth, guess)
            return
        step = tf.function(lambda: strategy.run(lambda: metric.update_state(truth, guess)))
        step()

    metric = made()
    with pytest.raises(tf.errors.InvalidArgumentError, match="not built"):
        tf.train.Checkpoint(metric=metric).save(tmp_path / "early")
    update(metric, guess)
    path = tf.train.Checkpoint(metric=metric).save(tmp_path / "ckpt")
    update(metric, truth)
    again = made()
    status = tf.train.Checkpoint(metric=again).restore(path)
    with pytest.raises(AssertionError, match="'metric/0000'"):
        status.assert_consumed()
    update(again, truth)
    status.assert_consumed()
    np.testing.assert_allclose(again.result(), metric.result(), rtol=1e-6)
