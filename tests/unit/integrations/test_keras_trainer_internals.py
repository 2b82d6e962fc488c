"""The names of Keras' trainer that are not public: each is there, and is what it is taken for."""

import inspect

import numpy as np
import pytest
from keras_training import KERAS_ARRAYS, keras, make_data, small_model

from stratagem._src.integrations.keras import trainer_internals as internals
from stratagem._src.integrations.keras.trainer_internals import JAXTrainer, Trainer

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAYS)

X, Y = make_data(4)

SIGNATURES = {
    "__init__": ["self"],
    "fit": ["callbacks", "verbose", "epochs"],
    "evaluate": ["callbacks", "verbose"],
    "predict": ["callbacks", "verbose"],
    "train_on_batch": ["x", "y"],
    "test_on_batch": ["x", "y"],
    "predict_on_batch": ["x"],
    "make_train_function": ["force"],
    "make_test_function": ["force"],
    "make_predict_function": ["force"],
    "jax_state_sync": [],
    "_get_jax_state": [
        "trainable_variables",
        "non_trainable_variables",
        "optimizer_variables",
        "metrics_variables",
        "purge_model_variables",
    ],
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_methods_that_are_wrapped(name):
    original = inspect.unwrap(vars(JAXTrainer)[name])
    assert set(SIGNATURES[name]) <= set(inspect.signature(original).parameters)


def test_methods_of_all_trainers_that_are_wrapped():
    assert issubclass(JAXTrainer, Trainer)
    assert issubclass(keras.Model, JAXTrainer)
    compile_ = inspect.signature(inspect.unwrap(vars(Trainer)["compile"]))
    names = ["self", "optimizer", "loss", "loss_weights", "metrics", "weighted_metrics"]
    assert list(compile_.parameters)[: len(names)] == names
    build = inspect.signature(inspect.unwrap(vars(Trainer)["_symbolic_build"]))
    assert {"iterator", "data_batch"} <= set(build.parameters)


def test_what_feeds_keras_is_asked_for_here():
    parameters = inspect.signature(internals.data_adapter_of).parameters
    assert list(parameters) == [
        *("x", "y", "sample_weight", "batch_size", "steps_per_epoch", "shuffle", "class_weight")
    ]
    assert internals.data_adapters.get_data_adapter is not internals.data_adapter_of
    assert isinstance(internals.data_adapter_of(X, Y), internals.ArrayDataAdapter)
    assert issubclass(internals.ArrayDataAdapter, internals.DataAdapter)
    assert internals.trainer._distribute_data is not internals.distribute_data


def test_the_arrays_that_keras_is_given():
    x, y = np.ones((4, 2)), np.zeros(4)
    given = internals.arrays_of(internals.data_adapter_of(x, y, class_weight={0: 3.0}))
    for array, expected in zip(given, [x, y, np.full(4, 3.0)], strict=True):
        np.testing.assert_array_equal(array, expected)


def test_whether_data_are_shuffled():
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return X, Y

    for data in ((X, Y), (Batches(),)):
        for shuffle in (True, False):
            adapter = internals.data_adapter_of(*data, shuffle=shuffle)
            assert internals.is_shuffled(adapter) is shuffle


def test_the_state_that_keras_takes_out_of_variables():
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            # Not `self.model`, which puts the state back.
            model = self._model
            seen.append((model._jax_state_synced, set(model._jax_state)))

    model = small_model()
    model.compile("sgd", "mse")
    assert internals.is_built(model)
    assert not internals.is_built(keras.Sequential([keras.layers.Dense(1)]))
    model.fit(X, Y, verbose=0, callbacks=[Look()])
    [(is_synced, parts)] = seen
    assert not is_synced
    assert parts == {
        *("trainable_variables", "non_trainable_variables"),
        *("optimizer_variables", "metrics_variables"),
    }
    for part in parts:
        assert all(hasattr(variable, "path") for variable in internals.variables_of(model, part))
    assert model._jax_state_synced
    model._jax_state, model._jax_state_synced = {}, False
    internals.note_state_in_variables(model)
    assert model._jax_state is None
    assert model._jax_state_synced


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_the_first_batch_of_an_epoch(steps_per_execution):
    iterator = internals.trainer.JAXEpochIterator(
        X, Y, batch_size=1, steps_per_execution=steps_per_execution
    )
    x, _ = internals.first_batch(iterator)
    np.testing.assert_array_equal(x, X[:1])


def test_the_epoch_that_a_callback_sets():
    class Begin(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            assert internals.initial_epoch(self.model) is None
            internals.set_initial_epoch(self.model, 2)

    model = small_model()
    model.compile("sgd", "mse")
    history = model.fit(X, Y, epochs=4, verbose=0, callbacks=[Begin()])
    assert history.epoch == [2, 3]


def test_weights_of_classes():
    weights = internals.class_weight_to_sample_weights(np.array([0, 1, 1]), {0: 0.5, 1: 2.0})
    np.testing.assert_array_equal(weights, [0.5, 2.0, 2.0])


def test_methods_of_callbacks_that_are_not_overridden():
    class Looks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            pass

    assert internals.is_default(keras.callbacks.Callback().on_train_batch_end)
    assert internals.is_default(Looks().on_test_batch_end)
    assert not internals.is_default(Looks().on_train_batch_end)
