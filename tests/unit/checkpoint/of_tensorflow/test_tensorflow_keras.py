"""Keras models and optimizers of TensorFlow, of Keras 3 and Keras 2, continue on JAX."""

import numpy as np
import pytest
from written_files import numbers

import stratagem as sg

keras = sg.keras

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")

SAVED = {
    "keras3": "keras3/ckpt-1",
    "keras2": "keras2/ckpt-1",
    "keras2_legacy": "keras2_legacy/weights",
    "keras2_saved_model": "keras2_saved_model",
}
QUICK = {("keras3", True), ("keras2_legacy", False)}
AT_ROOT = ("keras2_legacy", "keras2_saved_model")


def model_of(size, *, built=True):
    layers = [
        keras.layers.Dense(size, activation="tanh"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.0),
        keras.layers.Dense(2),
    ]
    model = keras.Sequential([keras.Input((3,)), *layers] if built else layers)
    model.compile(keras.optimizers.Adam(0.001), "mse")  # another rate than the saved one
    if built:
        model.optimizer.build(model.trainable_variables)
    return model


def checkpoint_of(model, name):
    model_name = "root" if name in AT_ROOT else "model"
    return sg.train.Checkpoint(**{model_name: model, "optimizer": model.optimizer})


X, Y = numbers(8, 3) % 1.0, numbers(8, 2) % 0.7


def close(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("name", "built"),
    [
        pytest.param(name, built, marks=() if (name, built) in QUICK else pytest.mark.slow)
        for name in SAVED
        for built in (True, False)
    ],
)
def test_a_model_and_its_optimizer_continue(files, name, built):
    """The next step gives the weights that it gives in TensorFlow."""
    model = model_of(files.size, built=built)
    status = checkpoint_of(model, name).restore(files.root / SAVED[name])
    if built and name in ("keras3", "keras2"):
        status.assert_consumed()
    close(model(X, training=False), files.predicted(name))
    model.train_on_batch(X, Y)
    for found, expected in zip(model.get_weights(), files.after(name), strict=True):
        close(found, expected)
    assert int(model.optimizer.iterations) == 4
    close(model.optimizer.learning_rate, 0.05)


def test_slots_follow_their_variables_and_not_the_order(files):
    """Of an optimizer that was built with the variables in another order."""
    model = model_of(files.size)
    model.optimizer = keras.optimizers.Adam(0.001)
    model.optimizer.build(model.trainable_variables[::-1])
    slots = {
        "keras2": "optimizer/_variables/1",
        "keras2_legacy": "layer_with_weights-0/kernel/.OPTIMIZER_SLOT/optimizer/m",
    }
    for name, slot in slots.items():
        checkpoint_of(model, name).restore(files.root / SAVED[name])
        kernel = model.optimizer._momentums[-1]
        tensors = files.tensors(SAVED[name])
        slot = (
            "optimizer/_variables/1"
            if name == "keras2"
            else "layer_with_weights-0/kernel/.OPTIMIZER_SLOT/optimizer/m"
        )
        close(kernel, tensors[f"{slot}/.ATTRIBUTES/VARIABLE_VALUE"])


@pytest.mark.parametrize("name", ["keras3_export", "keras2_h5"])
def test_weights_without_an_optimizer(files, name):
    model = model_of(files.size)
    path = files.root / ("keras2_h5/weights.h5" if name == "keras2_h5" else name)
    sg.train.Checkpoint(model).restore(path)
    close(model(X, training=False), files.predicted(name))
    assert int(model.optimizer.iterations) == 0


def test_keras_loads_weights_of_keras_2_under_a_strategy(files):
    with sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = model_of(files.size)
    model.load_weights(files.root / "keras2_h5/weights.h5")
    close(model(X, training=False), files.predicted("keras2_h5"))


def functional(size):
    inputs = keras.Input((4, 3))
    h = keras.layers.Dropout(0.5)(keras.layers.LSTM(size)(inputs))
    return keras.Model(inputs, keras.layers.Add()([keras.layers.Dense(2)(h) for _ in range(2)]))


@pytest.mark.slow
def test_a_functional_model_with_branches_and_a_seed(files):
    with sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = functional(files.size)
    sg.train.Checkpoint(model=model).restore(
        files.root / "keras3_functional/ckpt"
    ).assert_consumed()
    close(model(numbers(2, 4, 3) % 1.0), files.predicted("keras3_functional"))


def test_other_models_are_refused_before_anything_changes(files):
    more = keras.Sequential([keras.Input((3,)), *(keras.layers.Dense(2) for _ in range(5))])
    for model, error, why in (
        (model_of(files.size + 1), sg.errors.InvalidArgumentError, r"'model/0000' is float32\[3, "),
        (more, sg.errors.NotFoundError, r"no \['model/000\d \(.*dense.*/kernel:0\)"),
    ):
        before = model.get_weights()
        with pytest.raises(error, match=why):
            sg.train.Checkpoint(model=model).restore(files.root / SAVED["keras2"])
        for found, expected in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_an_h5_file_needs_the_model_that_was_saved(files):
    path = files.root / "keras2_h5/weights.h5"
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(
        sg.errors.InvalidArgumentError, match=r"got 1 layers .* for 3 with \[2, 4, 2\]"
    ):
        sg.train.Checkpoint(other).restore(path)
    with pytest.raises(sg.errors.InvalidArgumentError, match="one model that is built"):
        sg.train.Checkpoint(model_of(2, built=False)).restore(path)


def test_another_model_is_refused_when_it_is_built(files):
    model = model_of(files.size + 1, built=False)
    sg.train.Checkpoint(model=model).restore(files.root / SAVED["keras3"])
    with pytest.raises(
        sg.errors.InvalidArgumentError,
        match=r"keras3/ckpt-1 .*: model/0000 is float32",
    ):
        model(X)
