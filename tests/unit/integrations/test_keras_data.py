"""Everything that Keras is fed with, under a strategy: arrays, datasets, generators, loaders."""

import grain
import jax.numpy as jnp
import numpy as np
import pytest
from keras_training import (
    KERAS_ARRAYS,
    assert_same,
    keras,
    make_data,
    mirrored,
    scope_of,
    small_model,
)

import stratagem as sg

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAYS)

# The last batch of 8 has 5 rows, which do not divide by two replicas.
X, Y = make_data(21)
STRATEGY = mirrored(2)


def dataset(*, repeat=False):
    made = sg.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    return made.repeat() if repeat else made


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return X[8 * index : 8 * index + 8], Y[8 * index : 8 * index + 8]


def generator():
    """Yields batches in the same memory, which is filled again and again."""
    x, y = np.empty((8, 3), np.float32), np.empty((8, 1), np.float32)
    for _ in range(2):
        for index in range(2):
            x[:], y[:] = X[8 * index : 8 * index + 8], Y[8 * index : 8 * index + 8]
            yield x, y


def make_model(strategy, **options):
    with scope_of(strategy):
        model = small_model()
        model.compile("sgd", "mse", **options)
    return model


def numbers(model, data, *, predicted=None, **options):
    options = {"epochs": 2, "verbose": 0, "shuffle": False, **options}
    history = model.fit(data(), **options).history
    results = model.evaluate(data(), verbose=0, steps=options.get("steps_per_epoch"))
    return history, results, model.get_weights()


def of_arrays(strategy):
    return numbers(make_model(strategy), Batches)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(dataset, id="dataset"),
        pytest.param(lambda: STRATEGY.experimental_distribute_dataset(dataset()), id="distributed"),
        pytest.param(Batches, id="py_dataset", marks=pytest.mark.slow),
    ],
)
def test_datasets_are_as_arrays(data):
    expected = of_arrays(None)
    received = numbers(make_model(STRATEGY), data)
    assert_same(lambda strategy: expected if strategy is None else received, STRATEGY)


def test_arrays_of_jax():
    def train(strategy):
        model = make_model(strategy)
        history = model.fit(jnp.asarray(X), jnp.asarray(Y), batch_size=8, epochs=1, verbose=0)
        return history.history, model.get_weights()

    assert_same(train, STRATEGY)


@pytest.mark.slow
def test_a_generator_that_fills_the_same_memory():
    def train(strategy):
        model = make_model(strategy)
        history = model.fit(generator(), steps_per_epoch=2, epochs=2, verbose=0, shuffle=False)
        return history.history, model.get_weights()

    assert_same(train, STRATEGY)


@pytest.mark.slow
def test_a_grain_dataset():
    def data():
        rows = grain.MapDataset.source([(x, y) for x, y in zip(X, Y, strict=True)])
        return rows.to_iter_dataset().batch(7)

    def train(strategy):
        model = make_model(strategy)
        with pytest.warns(UserWarning, match="ran out of data"):
            history = model.fit(data(), epochs=1, verbose=0, shuffle=False).history
        return history, model.get_weights()

    assert_same(train, STRATEGY)


def test_an_infinite_dataset_needs_the_number_of_steps():
    model = make_model(STRATEGY)
    with pytest.raises(sg.errors.InvalidArgumentError, match="steps_per_epoch"):
        model.fit(dataset(repeat=True), verbose=0)
    history = model.fit(dataset(repeat=True), steps_per_epoch=2, verbose=0, shuffle=False).history
    assert len(history["loss"]) == 1


def test_class_weight_of_a_dataset():
    labels = (Y[:, 0] > 0.5).astype(np.int32)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)

    def train(strategy):
        with scope_of(strategy):
            model = small_model()
            model.compile("sgd", loss)
        if strategy is None:
            data = {"x": X, "y": labels[:, None], "batch_size": 8, "shuffle": False}
        else:
            made = sg.data.Dataset.from_tensor_slices((X, labels[:, None])).batch(8)
            data = {"x": made}
        return model.fit(**data, class_weight={0: 0.5, 1: 2.0}, verbose=0).history

    assert_same(train, STRATEGY)


def test_targets_belong_to_the_elements_of_a_dataset():
    model = make_model(STRATEGY)
    with pytest.raises(sg.errors.InvalidArgumentError, match="y must not be given"):
        model.fit(dataset(), Y, verbose=0)


def test_a_model_of_keras_alone_takes_a_dataset_but_no_distributed_one():
    model = make_model(None)
    assert model.fit(dataset(), verbose=0, shuffle=False).history["loss"]
    with pytest.raises(sg.errors.InvalidArgumentError, match="scope"):
        model.fit(STRATEGY.experimental_distribute_dataset(dataset()), verbose=0)


def test_a_batch_of_a_distributed_dataset():
    [x, y], *_ = STRATEGY.experimental_distribute_dataset(dataset())

    def train(strategy):
        model = make_model(strategy)
        batch = (X[:8], Y[:8]) if strategy is None else (x, y)
        return model.train_on_batch(*batch), model.predict_on_batch(batch[0])

    assert_same(train, STRATEGY)
