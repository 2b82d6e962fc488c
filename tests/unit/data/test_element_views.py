"""Elements of a dataset have ``.numpy()``, and are otherwise what NumPy makes of them."""

import collections
import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem.data import Dataset

Pair = collections.namedtuple("Pair", ["x", "y"])


def test_numbers():
    elements = list(Dataset.range(3))
    assert [x.numpy() for x in elements] == [0, 1, 2]
    assert type(elements[1].numpy()) is np.int64
    assert isinstance(elements[1], np.int64)
    assert repr(elements[1]) == "np.int64(1)"
    assert {elements[1]: "hashed"}[1] == "hashed"
    assert type(elements[1] + elements[2]) is np.int64
    assert type(pickle.loads(pickle.dumps(elements[1]))) is np.int64


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "float16", "bfloat16", "float32", "float64", "complex64"]
)
def test_scalars_of_every_type(dtype):
    values = np.array([0, 1], jnp.dtype(dtype))
    elements = list(Dataset.from_tensor_slices(values))
    assert [x.numpy() for x in elements] == [0, 1]
    assert elements[0].dtype == values.dtype


def test_arrays():
    (batch,) = Dataset.from_tensor_slices(np.arange(6.0, dtype=np.float32)).batch(6)
    plain = batch.numpy()
    assert type(plain) is np.ndarray
    plain[0] = 7.0  # a copy, as in TensorFlow
    assert batch[0] == 0.0
    assert isinstance(batch, np.ndarray)
    assert repr(batch) == "array([0., 1., 2., 3., 4., 5.], dtype=float32)"
    for derived in batch + 1, batch @ batch, batch.sum(), batch.mean(), np.stack([batch]):
        assert type(derived) in (np.ndarray, np.float32, np.float64)
    assert type(pickle.loads(pickle.dumps(batch))) is np.ndarray
    np.testing.assert_array_equal(copy.deepcopy(batch), batch)
    out = np.zeros(6, np.float32)
    assert np.add(batch, 1, out=out) is out


def test_strings():
    (text,) = Dataset.from_tensors("abc")
    assert text.numpy() == b"abc"
    assert type(text.numpy()) is bytes
    assert text.decode() == "abc"
    (batch,) = Dataset.from_tensor_slices(["a", "b"]).batch(2)
    assert batch.numpy().tolist() == [b"a", b"b"]


def test_strings_become_arrays_of_strings():
    elements = list(Dataset.from_tensor_slices(["007", "042"]))
    expected = np.array([b"007", b"042"])
    for array in np.array(elements), np.stack(elements), np.asarray(elements):
        assert array.dtype == "S3"
        np.testing.assert_array_equal(array, expected)
    assert np.asarray(elements[0]) == b"007"
    assert (expected == elements[1]).tolist() == [False, True]


def test_strings_go_into_datasets():
    elements = list(Dataset.from_tensor_slices([b"a\0", b"b"]))
    assert list(Dataset.from_tensor_slices(elements)) == [b"a\0", b"b"]
    assert list(Dataset.from_tensors(elements[0])) == [b"a\0"]


def test_strings_go_into_programs():
    (text,) = Dataset.from_tensors("ab")
    strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert sg.function(lambda x: len(x) + 1)(text) == 3
    assert strategy.run(lambda x: x, args=(text,)) == b"ab"
    assert sg.function(lambda x: strategy.run(len, args=(x,)))(text) == 2


def test_strings_are_bytes():
    (text,) = Dataset.from_tensors(b"a\0")
    assert text == b"a\0" != text[:1] == b"a"
    assert {text: 1}[b"a\0"] == 1
    assert len(text) == 2
    assert repr(text) == repr(b"a\0")
    assert type(pickle.loads(pickle.dumps(text))) is bytes
    assert (text != b"a", text + b"b", text * 2) == (True, b"a\0b", b"a\0a\0")


def test_structures():
    dataset = Dataset.from_tensors({"a": (1, [2.0, 3.0]), "b": Pair(4, None)})
    (element,) = dataset
    assert element["a"][0].numpy() == 1
    np.testing.assert_array_equal(element["a"][1].numpy(), [2.0, 3.0])
    assert type(element["b"]) is Pair
    assert element["b"].x.numpy() == 4
    assert element["b"].y is None


def test_get_next_and_restored_iterators():
    iterator = iter(Dataset.range(5))
    assert iterator.get_next().numpy() == 0
    assert next(copy.copy(iterator)).numpy() == 1
    assert next(pickle.loads(pickle.dumps(iterator))).numpy() == 1


def test_elements_go_into_programs():
    (batch,) = Dataset.range(3).batch(3)
    (number,) = Dataset.from_tensors(np.float32(2.0))
    for compile_ in jax.jit, sg.function:
        np.testing.assert_array_equal(compile_(lambda x, y: x * y)(batch, number), [0.0, 2.0, 4.0])
    np.testing.assert_array_equal(sg.Variable(batch), [0, 1, 2])


def test_numpy_iterators_and_functions_see_plain_arrays():
    seen = []
    dataset = Dataset.range(4).batch(2).map(lambda x: seen.append(type(x)) or x)
    assert [type(x) for x in dataset.as_numpy_iterator()] == [np.ndarray] * 2
    assert np.ndarray in seen
    assert not hasattr(next(Dataset.range(2).as_numpy_iterator()), "numpy")


@pytest.mark.parametrize("devices", [["CPU:0"], ["CPU:0", "CPU:1"]], ids=["one", "two"])
def test_distributed_elements(devices):
    strategy = sg.distribute.MirroredStrategy(devices)
    (element,) = strategy.experimental_distribute_dataset(Dataset.range(4).batch(4))
    parts = strategy.experimental_local_results(element)
    assert np.concatenate([part.numpy() for part in parts]).tolist() == [0, 1, 2, 3]
