"""Keras under a strategy, with what programs bring along: torch loaders, tf.data, TensorFlow's Keras."""

import json
import subprocess
import sys
from pathlib import Path

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

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAYS)

# The last batch of 8 has 5 rows, which do not divide by two replicas.
X, Y = make_data(21)
WEIGHTS = np.linspace(0.5, 2.0, len(X), dtype=np.float32)
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def trained(strategy, data, **options):
    """Returns the numbers of ``fit``, ``evaluate`` and ``predict`` with what ``data()`` returns."""
    with scope_of(strategy):
        model = small_model(keras.layers.BatchNormalization(), keras.layers.Dropout(0.3))
        model.compile("adam", "mse", metrics=["mae"], weighted_metrics=["mse"])
    options = {"epochs": 2, "verbose": 0, "shuffle": False, **options}
    history = model.fit(data(), validation_data=data(), **options).history
    return history, model.evaluate(data(), verbose=0), model.predict(data(), verbose=0)


def torch_loader(*arrays, **options):
    from torch import tensor
    from torch.utils.data import DataLoader, TensorDataset

    return DataLoader(TensorDataset(*map(tensor, arrays)), batch_size=8, **options)


def torch_stream():
    from torch import tensor
    from torch.utils.data import DataLoader, IterableDataset

    class Rows(IterableDataset):
        def __iter__(self):
            return ((tensor(x), tensor(y)) for x, y in zip(X, Y, strict=True))

        def __len__(self):
            return len(X)

    return DataLoader(Rows(), batch_size=8)


def torch_loader_in_random_order():
    from torch import Generator

    return torch_loader(X, Y, shuffle=True, generator=Generator().manual_seed(3))


def tf_dataset(*arrays):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(arrays).batch(8)


LOADERS = {
    "rows": lambda: torch_loader(X, Y),
    "rows with weights": lambda: torch_loader(X, Y, WEIGHTS),
    "64 bits": lambda: torch_loader(X.astype(np.float64), Y.astype(np.float64)),
    "random order": torch_loader_in_random_order,
    "only whole batches": lambda: torch_loader(X, Y, drop_last=True),
    "stream": torch_stream,
}


@pytest.mark.peer("torch", "tensorflow")  # Keras imports the second if it is there
@pytest.mark.parametrize("name", LOADERS)
def test_torch_loaders(name):
    assert_same(lambda strategy: trained(strategy, LOADERS[name]), mirrored(2))


@pytest.mark.peer("torch", "tensorflow")
def test_a_torch_loader_with_a_process_of_its_own():
    def train(options):
        with scope_of(mirrored(2)):
            model = small_model()
            model.compile("sgd", "mse")
        loader = torch_loader(X, Y, **options)
        return model.fit(loader, verbose=0, shuffle=False).history, model.get_weights()

    process = {"num_workers": 1, "multiprocessing_context": "spawn"}
    assert_same(lambda options: train(options or {}), process)


DATASETS = {
    "rows": lambda: tf_dataset(X, Y),
    "rows with weights": lambda: tf_dataset(X, Y, WEIGHTS),
    "64 bits": lambda: tf_dataset(X.astype(np.float64), Y.astype(np.float64)),
    "read ahead": lambda: tf_dataset(X, Y).cache().prefetch(2),
    "mapped": lambda: tf_dataset(X, Y).map(lambda x, y: (2 * x, y + 1), num_parallel_calls=2),
}


@pytest.mark.peer("tensorflow")
@pytest.mark.parametrize("name", DATASETS)
def test_tf_datasets(name):
    assert_same(lambda strategy: trained(strategy, DATASETS[name]), mirrored(2))


@pytest.mark.peer("tensorflow")
def test_a_tf_dataset_without_an_end():
    def train(strategy):
        with scope_of(strategy):
            model = small_model()
            model.compile("sgd", "mse")
        data = tf_dataset(X, Y).repeat()
        history = model.fit(data, steps_per_epoch=4, epochs=2, verbose=0, shuffle=False).history
        return history, model.get_weights()

    assert_same(train, mirrored(2))


@pytest.mark.peer("tensorflow")
def test_a_tf_dataset_of_dictionaries_with_class_weights():
    labels = (Y[:, 0] > 0.5).astype(np.int32)

    def train(strategy):
        import tensorflow as tf

        with scope_of(strategy):
            inputs = {name: keras.Input((3,), name=name) for name in ("a", "b")}
            joined = keras.layers.Concatenate()(list(inputs.values()))
            model = keras.Model(inputs, keras.layers.Dense(1)(joined))
            model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
        rows = tf.data.Dataset.from_tensor_slices(({"a": X, "b": 2 * X}, labels)).batch(8)
        options = {"class_weight": {0: 1.0, 1: 3.0}, "verbose": 0, "shuffle": False}
        history = model.fit(rows, **options).history
        return history, model.get_weights()

    assert_same(train, mirrored(2))


# Run by TensorFlow's Keras under its MirroredStrategy, and by Keras here under ours.
TRAINING = """
def training(keras, np, strategy):
    random = np.random.default_rng(0)
    x = random.normal(size=(36, 5)).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.int32)
    with strategy.scope():
        model = keras.Sequential([
            keras.Input((5,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(2),
        ])
        model.compile(
            keras.optimizers.Adam(0.01, global_clipnorm=1.0),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.set_weights([0.1 * random.normal(size=w.shape) for w in model.get_weights()])
    history = model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0).history
    evaluated = model.evaluate(x, y, batch_size=8, verbose=0)
    predicted = model.predict(x, batch_size=8, verbose=0)
    return [history, evaluated, predicted.tolist(), [w.tolist() for w in model.get_weights()]]
"""

IN_TENSORFLOW = """
import json, os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np, tensorflow as tf
[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
print(json.dumps(training(keras, np, strategy)))
"""


def last_line(*command):
    finished = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=110
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


@pytest.mark.peer("tensorflow")
def test_the_numbers_are_those_of_tensorflow_under_its_strategy():
    theirs = last_line("-c", TRAINING + IN_TENSORFLOW)
    names: dict = {}
    exec(TRAINING, names)
    ours = names["training"](keras, np, mirrored(2))
    assert_same(lambda strategy: theirs if strategy is None else ours, "ours", rtol=1e-3, atol=1e-4)


@pytest.mark.peer("tensorflow")
def test_the_benchmark_has_tensorflow_beside_it():
    assert last_line(str(BENCHMARKS / "keras_fit_tensorflow.py"), "dense", "2", "1") > 0
    assert last_line(str(BENCHMARKS / "keras_fit_servers_tensorflow.py"), "1", "20", "1") > 0
