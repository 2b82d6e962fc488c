"""What programs written for ``tf.keras`` of Keras 2 use."""

import numpy as np
import pytest
import tensorboardX  # noqa: F401  (it sets an environment variable when it is imported)

import stratagem as tf

keras = tf.keras
X = np.linspace(0, 1, 24, dtype=np.float32).reshape(8, 3)
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture
def model():
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        made.compile(tf.keras.optimizers.legacy.SGD(0.1), loss="mse")
    return made


def test_names():
    assert keras.losses.Reduction.NONE == "none"
    assert keras.losses.MSE is keras.losses.mean_squared_error
    assert keras.layers.ThresholdedReLU.__name__ == "ThresholdedReLU"
    assert keras.optimizers.legacy.Adam is keras.optimizers.Adam
    assert keras.Sequential().stop_training is False
    assert keras.callbacks.experimental.BackupAndRestore is keras.callbacks.BackupAndRestore
    with pytest.raises(AttributeError, match="has no attribute 'Reductoin'"):
        keras.losses.Reductoin  # noqa: B018
    assert not hasattr(keras.metrics, "__wrapped__")


@pytest.mark.filterwarnings("ignore:.*__array__.*:DeprecationWarning")
def test_arguments_of_optimizers():
    optimizer = keras.optimizers.Adam(lr=0.25)
    assert float(optimizer.lr.numpy()) == 0.25
    optimizer.lr = 0.5
    assert float(optimizer.learning_rate) == 0.5
    decaying = keras.optimizers.SGD(lr=1.0, decay=0.5)
    weight = keras.Variable(0.0)
    steps = []
    for _ in range(3):
        before = float(weight)
        decaying.apply([np.float32(-1)], [weight])
        steps.append(float(weight) - before)
    np.testing.assert_allclose(steps, [1, 1 / 1.5, 1 / 2], rtol=1e-6)
    assert float(keras.optimizers.SGD.from_config(decaying.get_config()).lr) == 1
    with pytest.raises(ValueError, match="not recognized"):
        keras.optimizers.SGD(0.1, learning=1)


def test_the_name_of_a_weight_comes_first():
    class Positives(keras.metrics.Metric):
        def __init__(self):
            super().__init__()
            self.count = self.add_weight("tp", (2,), initializer="zeros")

    class Scale(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight("scale", shape=shape[1:], initializer="ones")

        def call(self, x):
            return x * self.scale

    assert (Positives().count.name, Positives().count.shape) == ("tp", (2,))
    layer = Scale()
    np.testing.assert_array_equal(layer(X), X)
    assert layer.scale.name == "scale"


@pytest.mark.filterwarnings("ignore:.*__array__.*:DeprecationWarning")
def test_a_loss_takes_lists(tmp_path):
    loss = keras.losses.sparse_categorical_crossentropy
    np.testing.assert_allclose(loss([1], [[0.1, 0.9]]), [-np.log(0.9)], rtol=1e-6)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, activation="softmax")])
    model.compile("sgd", loss, metrics=[loss])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.get_compile_config() == model.get_compile_config()
    labels = np.arange(8) % 2
    assert loaded.evaluate(X, labels, verbose=0) == model.evaluate(X, labels, verbose=0)


def test_export_says_what_to_call_without_tensorflow(model, tmp_path):
    with pytest.raises(
        tf.errors.MissingExtraError, match=r"sg\.saved_model\.save.*saved_models\.md"
    ):
        model.export(tmp_path / "exported")


@pytest.mark.filterwarnings("ignore:.*__array__.*:DeprecationWarning")
def test_loading_a_model_in_a_scope_creates_its_variables_only(model, tmp_path, monkeypatch):
    model.save(tmp_path / "model.keras")
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    create, names = strategy.extended.create_variable, []

    def record(*args, name, **kwargs):
        names.append(name)
        return create(*args, name=name, **kwargs)

    monkeypatch.setattr(strategy.extended, "create_variable", record)
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
        loaded.save(tmp_path / "again.keras")
    assert {name.split("/")[-1] for name in names} >= {"kernel", "iteration"}
    assert not [name for name in names if name.startswith("optimizer")]


def test_weights_are_saved_at_any_path(model, tmp_path):
    before = model.get_weights()
    callback = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "at_{epoch}.tf"), save_weights_only=True
    )
    model.fit(X, Y, epochs=2, verbose=0, callbacks=[callback])
    trained = model.get_weights()
    model.save_weights(str(tmp_path / "last"), save_format="tf")
    assert {path.name for path in tmp_path.iterdir()} == {
        "at_1.tf.weights.h5",
        "at_2.tf.weights.h5",
        "last.weights.h5",
    }
    for name in "at_2.tf", "last", "last.weights.h5":
        model.set_weights(before)
        model.load_weights(tmp_path / name)
        for found, expected in zip(model.get_weights(), trained, strict=True):
            np.testing.assert_array_equal(found, expected)
    with pytest.raises((ValueError, OSError)):
        model.load_weights(str(tmp_path / "nothing"))


def test_modules_below_keras_are_those_of_keras():
    import stratagem.keras.optimizers.schedules as schedules
    from stratagem.keras.layers import Dense, StringLookup
    from stratagem.keras.utils.experimental import DatasetCreator

    assert (Dense, StringLookup) == (keras.layers.Dense, keras.layers.StringLookup)
    assert DatasetCreator is keras.utils.experimental.DatasetCreator
    assert schedules is keras.optimizers.schedules
    with pytest.raises(ModuleNotFoundError):
        import stratagem.keras.nothing  # noqa: F401


def test_experimental_names():
    assert keras.layers.experimental.preprocessing.Rescaling is keras.layers.Rescaling
    assert keras.experimental.CosineDecay is keras.optimizers.schedules.CosineDecay


M = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("sum", (M, 0), [4, 6]),
        ("mean", (M > 1,), 0.75),
        ("max", (M, 1, True), [[2], [4]]),
        ("any", (M - 1,), True),
        ("argmax", (M,), [1, 1]),
        ("sqrt", (M - 2,), [[0, 0], [1, np.sqrt(2)]]),
        ("clip", (M, 1.5, 3), [[1.5, 2], [3, 3]]),
        ("clip", (M, 3, 2), [[3, 3], [3, 3]]),
        ("clip", (M, None, 3), [[1, 2], [3, 3]]),
        ("hard_sigmoid", (M - 2,), [[0.3, 0.5], [0.7, 0.9]]),
        ("relu", (M - 2, 0.5), [[-0.5, 0], [1, 2]]),
        ("flatten", (M,), [1, 2, 3, 4]),
        ("batch_flatten", (M[:, None],), M),
        ("int_shape", (M,), (2, 2)),
        ("dtype", (M,), "float32"),
        ("dot", (M, M), M @ M),
        ("gather", (M, [1]), M[1:]),
        ("cumsum", (M,), [[1, 2], [4, 6]]),
        ("concatenate", ([M, M],), np.concatenate([M, M], -1)),
        ("permute_dimensions", (M, (1, 0)), M.T),
        ("repeat", (M, 2), M[:, None].repeat(2, 1)),
        ("repeat_elements", (M, 2, 0), M.repeat(2, 0)),
        ("reverse", (M, 1), M[:, ::-1]),
        ("l2_normalize", (M, 1), M / np.linalg.norm(M, axis=1, keepdims=True)),
        ("switch", (np.array([1, 0]), M, -M), [[1, 2], [-3, -4]]),
        ("binary_crossentropy", (M > 2, M / 5), -np.log([[0.8, 0.6], [0.6, 0.8]])),
        ("sparse_categorical_crossentropy", ([0, 1], M / 7), -np.log([1 / 3, 4 / 7])),
        ("categorical_crossentropy", ([[1, 0], [0, 1]], M / 7), -np.log([1 / 3, 4 / 7])),
        ("one_hot", (np.array([0, 1]), 2), np.eye(2)),
        ("zeros", ((2,),), [0, 0]),
        ("constant", (3, None, (2,)), [3, 3]),
        ("count_params", (M,), 4),
    ],
)
def test_backend_functions(name, arguments, expected):
    found = getattr(keras.backend, name)(*arguments)
    if isinstance(expected, str | tuple):
        assert found == expected
    else:
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5)


def test_backend_variables():
    backend = keras.backend
    variable = backend.variable(1.0)
    backend.update_add(variable, 2.0)
    assert backend.get_value(variable) == 3.0
    backend.set_value(variable, 5.0)
    backend.update_sub(variable, 1.0)
    assert backend.batch_get_value([variable]) == [4.0]
    backend.batch_set_value([(variable, 6.0)])
    assert backend.eval(backend.update(variable, 7.0)) == 7.0


def test_backend_random_numbers_follow_the_seed_of_tf():
    def draw():
        tf.random.set_seed(3)
        return [
            np.asarray(keras.backend.random_normal((100,), 5.0)),
            np.asarray(keras.backend.random_uniform((100,), maxval=2.0)),
            np.asarray(keras.backend.random_bernoulli((100,), 0.5)),
            np.asarray(keras.backend.truncated_normal((100,), stddev=0.1)),
            np.asarray(keras.backend.dropout(np.ones(100, np.float32), 0.5)),
        ]

    first = draw()
    np.testing.assert_array_equal(first, draw())
    assert 4 < first[0].mean() < 6
    assert first[1].max() > 1
    assert set(first[2]) == {0.0, 1.0}
    assert abs(first[3]).max() <= 0.2
    assert set(first[4]) == {0.0, 2.0}


def test_missing_backend_functions_name_what_to_use():
    with pytest.raises(AttributeError, match=r"'batch_dot'. Use keras.ops.einsum"):
        keras.backend.batch_dot  # noqa: B018
    with pytest.raises(AttributeError, match=r"Look for it in keras.ops"):
        keras.backend.summ  # noqa: B018


def test_reset_states():
    metric = keras.metrics.Mean()
    metric.update_state(3.0)
    metric.reset_states()
    assert float(metric.result()) == 0.0


def test_tensorboard_writes_without_tensorflow(model, tmp_path):
    callback = keras.callbacks.TensorBoard(tmp_path, histogram_freq=1, update_freq=1)
    model.fit(X, Y, validation_data=(X, Y), epochs=2, verbose=0, callbacks=[callback])
    for part in ("train", "validation"):
        (file,) = (tmp_path / part).iterdir()
        assert b"epoch_loss" in file.read_bytes()
    assert b"evaluation_loss_vs_iterations" in file.read_bytes()


def test_a_path_without_extension_is_a_directory(model, tmp_path, caplog):
    path = tmp_path / "model"
    tf.saved_model.save(model, path)
    model.save(path, options=tf.saved_model.SaveOptions("/job:localhost"))
    model.layers[-1].kernel.assign(np.ones((3, 1)))
    model.save(path)
    program = tf.saved_model.load(path)  # not what was there before
    np.testing.assert_allclose(program.signatures["serving_default"](X), model(X), rtol=1e-6)
    loaded = keras.models.load_model(path, options=tf.saved_model.LoadOptions())
    np.testing.assert_array_equal(loaded(X), model(X))
    for _ in range(2):
        model.save(path, save_format="tf")
    assert caplog.text.count("call sg.saved_model.save(model, path)") == 1
    with pytest.raises(ValueError, match="extension"):
        model.save(tmp_path / "model.zip")
    with pytest.raises(tf.errors.InvalidArgumentError, match="'/job:ps'"):
        tf.saved_model.SaveOptions("/job:ps")


def test_a_checkpoint_callback_saves_in_a_directory(model, tmp_path):
    callback = keras.callbacks.ModelCheckpoint(tmp_path / "in" / "ckpt", save_best_only=False)
    model.fit(X, Y, verbose=0, epochs=2, callbacks=[callback])
    loaded = keras.models.load_model(tmp_path / "in" / "ckpt")
    np.testing.assert_array_equal(loaded(X), model(X))
    for name in ("{loss:.2f}", "ckpt.zip"):
        with pytest.raises(ValueError, match="must end in"):
            keras.callbacks.ModelCheckpoint(name)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return self.dense(x)


def test_a_subclassed_model_is_saved_with_the_input_of_its_first_call(tmp_path, caplog):
    model = Subclassed()
    assert model.save_spec() is None
    tf.saved_model.save(model, tmp_path / "model")
    assert "has not been called yet" in caplog.text
    assert not tf.saved_model.load(tmp_path / "model").signatures
    expected = model(X)
    (spec,), named = model.save_spec()
    assert (spec, named) == (tf.TensorSpec([None, 3]), {})
    tf.saved_model.save(model, tmp_path / "model")
    np.testing.assert_allclose(tf.saved_model.load(tmp_path / "model")(X), expected, rtol=1e-6)


def test_tf_metrics_in_compile(tmp_path):
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        metrics = [tf.metrics.SparseCategoricalAccuracy(), tf.metrics.Mean(name="unused")][:1]
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=metrics)
    history = model.fit(X, np.arange(8) % 2, verbose=0).history
    assert "sparse_categorical_accuracy" in history
    model.save(tmp_path / "model.keras")

    class Own(tf.metrics.Metric):
        pass

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"keras\.metrics\.Metric"):
        model.compile("sgd", "mse", metrics=[Own()])


@pytest.mark.parametrize("compiled", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("masked", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_synchronized_batch_normalization_is_that_of_the_global_batch(compiled, masked):
    sync = keras.layers.experimental.SyncBatchNormalization
    x = np.random.default_rng(0).normal(size=(8, 3, 2)).astype(np.float32)
    mask = np.arange(24).reshape(8, 3) % 5 != 0 if masked else np.ones((8, 3), bool)

    def train(strategy, layer_class, **options):
        with strategy.scope():
            layer = layer_class(momentum=0.5, fused=False, **options)
            layer.build((None, 3, 2))
            gradients = tf.Variable(
                np.zeros((2, 2), np.float32), aggregation=tf.VariableAggregation.SUM
            )

        def step(x, mask):
            with tf.GradientTape() as tape:
                y = layer(x, training=True, mask=mask if masked else None)
                loss = tf.reduce_sum(y * y * x) / 8
            gradients.assign(tf.stack(tape.gradient(loss, [layer.gamma, layer.beta])))
            return y

        data = tf.data.Dataset.from_tensor_slices((x, mask)).batch(8)
        element = next(iter(strategy.experimental_distribute_dataset(data)))
        run = tf.function(strategy.run) if compiled else strategy.run
        y = strategy.gather(run(step, args=element), axis=0)
        return [np.asarray(v) for v in (y, gradients, layer.moving_mean, layer.moving_variance)]

    plain = keras.layers.BatchNormalization
    expected = train(tf.distribute.OneDeviceStrategy("CPU:0"), plain)
    two = ["CPU:0", "CPU:1"]
    for found in (
        train(tf.distribute.MirroredStrategy(two), sync),
        train(tf.distribute.MirroredStrategy(two), plain, synchronized=True),
    ):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    local = train(tf.distribute.MirroredStrategy(two), plain)
    assert np.abs(local[0] - expected[0]).max() > 1e-3
    layer = sync.from_config(sync(momentum=0.5).get_config())
    assert (layer.synchronized, layer.momentum) == (True, 0.5)


def test_flags_of_a_call_by_position():
    class Doubled(keras.layers.Layer):
        def call(self, x, training, scale=1.0):
            return x * (2.0 if training else 1.0) * scale

    layer = Doubled()
    assert [float(layer(np.ones(()), flag)) for flag in (True, False)] == [2, 1]
    assert float(layer(np.ones(()), True, 3.0)) == 6
    normalization = keras.layers.BatchNormalization()
    assert np.abs(normalization(X, True)).max() > np.abs(normalization(X, False)).max()


def test_minimize():
    optimizer, weight = keras.optimizers.SGD(0.5), keras.Variable(3.0)
    optimizer.minimize(lambda: weight * weight, [weight])
    assert float(weight) == 0.0
    with tf.GradientTape() as tape:
        loss = (weight - 1.0) ** 2
    optimizer.minimize(loss, [weight], tape=tape)
    assert float(weight) == 1.0
    with pytest.raises(ValueError, match="minimize needs a function"):
        optimizer.minimize(loss, [weight])


def test_a_model_that_overrides_the_call_is_saved(tmp_path):
    class Scaled(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def __call__(self, x):
            return 2 * self.dense(x)

    model = Scaled()
    checkpoint = tf.train.Checkpoint(model=model)
    with pytest.raises(Exception, match="is not built"):
        checkpoint.save(str(tmp_path / "a"))
    expected = np.asarray(model(X))
    path = checkpoint.save(str(tmp_path / "b"))
    model.dense.kernel.assign(model.dense.kernel * 0)
    checkpoint.restore(path)
    np.testing.assert_array_equal(model(X), expected)
