"""Which strategy a Keras model belongs to: what is refused, saved, loaded, cloned and restored."""

import jax
import numpy as np
import pytest
from keras_training import KERAS_ARRAYS, keras, make_data, mirrored, scope_of, small_model

import stratagem as sg

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAYS)

X, Y = make_data(8)


def weights_equal(one, other):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


# --- what is refused ----------------------------------------------------------------------------------


def test_a_model_made_outside_is_not_compiled_in_a_scope():
    model = small_model()
    with (
        mirrored(2).scope(),
        pytest.raises(sg.errors.ContextError, match=r"outside of any scope.*with strategy"),
    ):
        model.compile("sgd", "mse")
    assert not model.compiled


@pytest.mark.parametrize("method", ["fit", "evaluate", "train_on_batch", "test_on_batch"])
def test_a_model_made_outside_is_not_used_in_a_scope(method):
    model = small_model()
    model.compile("sgd", "mse")
    before = model.get_weights()
    with mirrored(2).scope(), pytest.raises(sg.errors.ContextError, match="outside of any scope"):
        getattr(model, method)(X, Y)
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_optimizer_made_outside_is_refused():
    optimizer = keras.optimizers.Adam()
    with mirrored(2).scope():
        model = small_model()
        with pytest.raises(sg.errors.ContextError, match=r"Adam passed to compile.*outside"):
            model.compile(optimizer, "mse")
    assert not model.compiled


def test_a_metric_of_another_strategy_is_refused():
    with mirrored(2).scope():
        metric = keras.metrics.MeanAbsoluteError()
    with mirrored(4).scope():
        model = small_model()
        with pytest.raises(sg.errors.ContextError, match="MeanAbsoluteError passed to compile"):
            model.compile("sgd", "mse", metrics=[metric])


def test_an_optimizer_of_a_strategy_for_a_model_of_keras_alone_is_refused():
    with mirrored(2).scope():
        optimizer = keras.optimizers.SGD()
    with pytest.raises(sg.errors.ContextError, match="SGD passed to compile"):
        small_model().compile(optimizer, "mse")


def test_layers_of_two_scopes_are_refused():
    outside = keras.layers.Dense(3)
    outside.build((None, 3))
    with mirrored(2).scope():
        model = small_model(outside)
        with pytest.raises(sg.errors.ContextError, match=r"one scope"):
            model.compile("sgd", "mse")


def test_a_model_on_one_device_takes_arrays_of_another():
    strategy = sg.distribute.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
    with strategy.scope():
        model = small_model()
    x = jax.device_put(np.ones((2, 3), np.float32), jax.devices()[1])
    np.testing.assert_allclose(model(x), model.predict(np.asarray(x), verbose=0), rtol=1e-6)
    assert {w.twin.device for w in model.weights} == set(strategy.extended.parameter_devices)


def test_no_training_inside_a_replica():
    strategy = mirrored(2)
    with strategy.scope():
        model = small_model()
        model.compile("sgd", "mse")
    with pytest.raises(sg.errors.ContextError, match=r"run\(\)"):
        strategy.run(lambda: model.predict(X, verbose=0))


# --- where a model belongs ----------------------------------------------------------------------------


def test_compiled_outside_of_the_scope_it_was_made_in():
    strategy = mirrored(2)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(X, Y, verbose=0)
    for variable in [*model.variables, *model.optimizer.variables]:
        assert variable.value.sharding == strategy.replica_group.replicated


def test_an_unbuilt_model_is_taken_into_the_scope_it_is_compiled_in():
    strategy = mirrored(2)
    model = keras.Sequential([keras.layers.Dense(1)])
    with strategy.scope():
        model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    assert model.weights[0].value.sharding == strategy.replica_group.replicated


def test_models_of_keras_alone_train_beside_those_of_a_strategy():
    with mirrored(2).scope():
        model = small_model()
        model.compile("sgd", "mse")
    alone = small_model()
    alone.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    alone.fit(X, Y, verbose=0)
    assert len(alone.weights[0].value.devices()) == 1


# --- saving, cloning, restoring -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "into",
    [
        "another",
        pytest.param("scope", marks=pytest.mark.slow),
        pytest.param("none", marks=pytest.mark.slow),
    ],
)
def test_saved_and_loaded(tmp_path, into):
    strategies = {"scope": mirrored(2), "another": mirrored(4), "none": None}
    with scope_of(strategies["scope"]):
        model = small_model(keras.layers.BatchNormalization())
        model.compile(keras.optimizers.Adam(0.01), "mse")
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    with scope_of(strategies[into]):
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    weights_equal(model, loaded)
    for one, other in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    expected = model.fit(X, Y, verbose=0, shuffle=False).history
    received = loaded.fit(X, Y, verbose=0, shuffle=False).history
    np.testing.assert_allclose(expected["loss"], received["loss"], rtol=1e-5)


@pytest.mark.slow
def test_loaded_into_a_scope_from_keras_alone(tmp_path):
    model = small_model()
    model.compile("adam", "mse")
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    strategy = mirrored(2)
    with strategy.scope():
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        other = small_model()
        other.compile("adam", "mse")
        other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "model.weights.h5")
    weights_equal(model, loaded)
    weights_equal(model, other)
    assert loaded.weights[0].value.sharding == strategy.replica_group.replicated


@pytest.mark.slow
def test_cloned():
    strategy = mirrored(2)
    with strategy.scope():
        model = small_model()
        cloned = keras.models.clone_model(model)
        cloned.set_weights(model.get_weights())
        cloned.compile("sgd", "mse")
    cloned.fit(X, Y, verbose=0)
    outside = keras.models.clone_model(model)
    outside.set_weights(model.get_weights())
    outside.compile("sgd", "mse")
    outside.fit(X, Y, verbose=0)
    for one, other in zip(cloned.get_weights(), outside.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_arrays_that_were_read_before_stay(tmp_path):
    with mirrored(2).scope():
        model = small_model()
        model.compile("sgd", "mse")
    read = model.weights[0].value
    before = np.array(read)
    model.fit(X, Y, verbose=0)
    np.testing.assert_array_equal(np.asarray(read), before)


# --- in a Checkpoint ----------------------------------------------------------------------------------


def test_a_model_and_its_optimizer_in_a_checkpoint(tmp_path):
    """Saved on one device and restored on two: training goes on as before."""

    def make(strategy):
        with scope_of(strategy):
            model = small_model(keras.layers.BatchNormalization())
            model.compile("adam", "mse")
            model.optimizer.build(model.trainable_variables)
        return model, sg.train.Checkpoint(model=model, optimizer=model.optimizer)

    model, checkpoint = make(None)
    model.fit(X, Y, shuffle=False, verbose=0)
    path = checkpoint.save(tmp_path / "ckpt")
    other, checkpoint = make(mirrored(2))
    other.set_weights([np.zeros_like(w) for w in other.get_weights()])
    checkpoint.restore(path).assert_consumed()
    weights_equal(model, other)
    assert int(other.optimizer.iterations) == int(model.optimizer.iterations) > 0
    for each in (model, other):
        each.fit(X, Y, shuffle=False, verbose=0)
    for one, two in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
    with mirrored(2).scope():
        wide = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(
        ValueError, match=r"'model/0000' is float32\[3, 2\], but the checkpoint has"
    ):
        sg.train.Checkpoint(model=wide).restore(path)
