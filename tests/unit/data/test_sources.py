from __future__ import annotations

import collections

import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.data import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    CardinalityError,
    Dataset,
    InvalidArgumentError,
    NotFoundError,
    TensorSpec,
)

from .pipelines import INT, contents

Pair = collections.namedtuple("Pair", ["a", "b"])


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1, 2], np.int32),
        ([1.0, 2.0], np.float32),
        ([True, False], np.bool_),
        ([2**40], np.int64),
        (np.array([1.0]), np.float64),
        (np.array([1]), np.int64),
        ([np.float64(1)], np.float64),
        (jnp.array([1.0]), np.float32),
        (["text"], object),
    ],
)
def test_types_are_tensorflows_for_python_and_kept_for_arrays(value, dtype):
    dataset = Dataset.from_tensor_slices(value)
    assert dataset.element_spec == TensorSpec((), dtype)
    (element, *_) = dataset
    assert isinstance(element, bytes) if dtype is object else element.dtype == dtype


def test_nests_are_sliced_together():
    dataset = Dataset.from_tensor_slices(
        {"x": np.arange(4).reshape(2, 2), "y": ([5, 6], ["a", "b"])}
    )
    assert contents(dataset) == [
        {"x": [0, 1], "y": (5, b"a")},
        {"x": [2, 3], "y": (6, b"b")},
    ]
    assert list(dataset.element_spec) == ["x", "y"]
    element = next(iter(Dataset.from_tensor_slices(Pair([1], [2.0]))))
    assert isinstance(element, Pair)
    assert (element.a, element.b) == (1, 2.0)


def test_strings_keep_their_bytes():
    dataset = Dataset.from_tensor_slices([b"a\0", "é", ""])
    assert contents(dataset) == [b"a\0", "é".encode(), b""]
    (batch,) = dataset.batch(3)
    assert batch.tolist() == [b"a\0", "é".encode(), b""]


def test_from_tensors_is_one_element():
    assert contents(Dataset.from_tensors(([1, 2], 3.0))) == [([1, 2], 3.0)]
    assert Dataset.from_tensors([[1.0]]).element_spec == TensorSpec([1, 1], np.float32)
    (batch,) = Dataset.from_tensors([[1.0]]).repeat(3).batch(3)
    assert batch.shape == (3, 1, 1)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (([1, 2], [3]), "same leading dimension"),
        (5, "same leading dimension"),
        ([[1], [2, 3]], "items must have the same shape"),
        ((), "at least one component"),
        ({"x": None}, "at least one component"),
        ({"x": {1}}, "must be made of arrays"),
    ],
)
def test_what_cannot_be_sliced(arrays, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Dataset.from_tensor_slices(arrays)


def test_an_element_is_not_a_view_of_the_source():
    array = np.zeros((3, 2))
    for element in Dataset.from_tensor_slices(array):
        element += 1
    for batch in Dataset.from_tensor_slices(array).batch(2):
        batch += 1
    assert not array.any()


@pytest.mark.parametrize("args", [(5,), (2, 5), (9, 2, -3), (0,), (5, 2)])
def test_range_is_pythons(args):
    assert contents(Dataset.range(*args)) == list(range(*args))
    assert len(Dataset.range(*args)) == len(range(*args))
    assert Dataset.range(*args).element_spec.dtype == np.int64


def test_range_of_another_type():
    (batch,) = Dataset.range(3, output_type=np.float32).batch(3)
    assert batch.dtype == np.float32
    with pytest.raises(InvalidArgumentError, match="must be an integer"):
        Dataset.range(1.5)


def test_lengths():
    assert len(Dataset.range(10).batch(3)) == 4
    infinite, unknown = Dataset.range(10).repeat(), Dataset.range(10).filter(lambda x: x > 3)
    assert infinite.cardinality() == INFINITE_CARDINALITY
    assert unknown.cardinality() == UNKNOWN_CARDINALITY
    assert infinite
    for dataset in (infinite, unknown):
        with pytest.raises(CardinalityError, match="Use cardinality"):
            len(dataset)


def test_generators_are_called_for_every_iteration():
    def count(start, stop):
        yield from range(start, stop)

    dataset = Dataset.from_generator(count, output_signature=INT, args=(2, 5))
    assert contents(dataset) == contents(dataset) == [2, 3, 4]


def test_generators_by_types_and_shapes():
    dataset = Dataset.from_generator(
        lambda: iter([([1, 2], "a")]), output_types=("int64", "string"), output_shapes=([2], [])
    )
    ((numbers, text),) = dataset
    assert numbers.dtype == np.int64
    assert text == b"a"
    assert dataset.element_spec == (TensorSpec([2], np.int64), TensorSpec((), object))
    untold = Dataset.from_generator(lambda: iter([1]), output_types="float32")
    assert untold.element_spec.shape.rank is None
    assert next(iter(untold)).dtype == np.float32


@pytest.mark.parametrize(
    ("elements", "signature", "message"),
    [
        ([1, [2]], TensorSpec((), "int32"), r"Element 1 .*must match .*\(\), dtype=int32"),
        (
            [1, 2.5],
            TensorSpec((), "int32"),
            "Element 1 .*int32.* a cast would change its float32 values",
        ),
        ([(1, 2), 3], (INT, INT), r"Element 1 .*structure \(\*, \*\), got \*"),
        ([{"a": 1}, {"b": 1}], {"a": INT}, "Element 1 .*structure {'a': .*got {'b'"),
    ],
)
def test_elements_that_do_not_match_their_signature(elements, signature, message):
    dataset = Dataset.from_generator(lambda: iter(elements), output_signature=signature)
    with pytest.raises(InvalidArgumentError, match=message):
        list(dataset)


def test_generator_arguments_are_checked():
    with pytest.raises(InvalidArgumentError, match="either output_signature or output_types"):
        Dataset.from_generator(lambda: iter([1]))
    with pytest.raises(InvalidArgumentError, match="nest of TensorSpec"):
        Dataset.from_generator(lambda: iter([1]), output_signature="int32")
    with pytest.raises(InvalidArgumentError, match="must be a function"):
        Dataset.from_generator([1], output_signature=INT)


def test_list_files(tmp_path):
    for name in "cab":
        (tmp_path / f"{name}.txt").write_text(name)
    (tmp_path / "other.csv").write_text("")
    expected = [str(tmp_path / f"{name}.txt").encode() for name in "abc"]
    pattern = str(tmp_path / "*.txt")
    assert contents(Dataset.list_files(pattern, shuffle=False)) == expected
    shuffled = Dataset.list_files([pattern, str(tmp_path / "a.*")], seed=1)
    orders = [contents(shuffled) for _ in range(5)]
    assert all(sorted(order) == expected for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    with pytest.raises(NotFoundError, match="nothing"):
        Dataset.list_files(str(tmp_path / "nothing*"))


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("float32", np.array([1.5, 2.5]), [1.5, 2.5]),
        ("float32", np.float64(0.1), np.float32(0.1)),
        ("float32", np.array([1, 2]), [1.0, 2.0]),
        ("float32", jnp.arange(2), [0.0, 1.0]),
        ("int32", np.array([1, 2**31 - 1]), [1, 2**31 - 1]),
        ("int32", np.array([1.0, -2.0]), [1, -2]),
        ("int32", np.array([True]), [1]),
        ("bool", np.array([2, 0]), [True, False]),
        ("complex64", 1.5, 1.5 + 0j),
        ("float16", np.array([np.inf, np.nan]), [np.inf, np.nan]),
    ],
)
@pytest.mark.parametrize("given", ["output_types", "output_signature"])
def test_generator_casts_to_the_type_asked_for(dtype, value, expected, given):
    asked = {given: dtype if given == "output_types" else TensorSpec(None, dtype)}
    (element,) = Dataset.from_generator(lambda: iter([value]), **asked)
    assert element.dtype == dtype
    np.testing.assert_array_equal(element, np.array(expected, dtype))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int32", np.array([2**40])),
        ("int32", 2**40),
        ("int32", np.array([1.5])),
        ("int32", 1.5),
        ("int32", np.array([np.nan])),
        ("int32", np.array([1e20])),
        ("uint8", np.array([-1])),
        ("float16", np.array([1e10])),
        ("float32", 1j),
        ("string", 3),
        ("int32", "a"),
    ],
)
def test_generator_refuses_a_cast_that_changes_numbers(dtype, value):
    dataset = Dataset.from_generator(lambda: iter([value]), output_types=dtype)
    with pytest.raises(InvalidArgumentError, match="Element 0 of the generator"):
        next(iter(dataset))
