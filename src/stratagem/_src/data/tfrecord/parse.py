"""``parse_example``, ``parse_single_example`` and ``parse_single_sequence_example``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from stratagem._src.core.errors import DataLossError, InvalidArgumentError
from stratagem._src.core.tensor_shape import TensorShape
from stratagem._src.core.types import ArrayLike
from stratagem._src.data.conversion import to_array
from stratagem._src.data.tensor_spec import STRING
from stratagem._src.data.tfrecord.example_message import messages
from stratagem._src.data.tfrecord.features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    VarLenFeature,
)

__all__ = [
    "SparseValues",
    "parse_example",
    "parse_single_example",
    "parse_single_sequence_example",
]

_LISTS = {
    STRING: "bytes_list",
    np.dtype(np.float32): "float_list",
    np.dtype(np.int64): "int64_list",
}

Feature = FixedLenFeature | FixedLenSequenceFeature | VarLenFeature
Specs = Mapping[str, Feature]


class _Coordinates(NamedTuple):
    indices: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]
    dense_shape: np.ndarray[Any, Any]


class SparseValues(_Coordinates):
    """The values of a ``VarLenFeature`` in a batch, as a sparse array in COO format: ``tf.SparseTensor``.

    Differs from TensorFlow: it is a value of input pipelines; ``tf.sparse.to_dense`` makes an array of it.

    JAX equivalent: ``jax.experimental.sparse.BCOO``.

    >>> from stratagem.io import SparseValues
    >>> SparseValues([[0, 1]], [7], [1, 2]).to_dense().tolist()
    [[0, 7]]

    Args:
        indices: The index of each value, one row each.
        values: The values.
        dense_shape: The shape of the array.
    """

    __slots__ = ()

    def __new__(cls, indices: ArrayLike, values: ArrayLike, dense_shape: ArrayLike) -> Self:
        """Takes lists, too."""
        if isinstance(indices, (list, tuple)):
            indices = np.array(indices, np.int64)
        if isinstance(values, (list, tuple)):
            values = to_array(values)
        if isinstance(dense_shape, (list, tuple)):
            dense_shape = np.array(dense_shape, np.int64)
        return super().__new__(cls, indices, values, dense_shape)

    @property
    def shape(self) -> TensorShape:
        """The shape of the array."""
        return TensorShape(self.dense_shape.tolist())

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.values.dtype

    def to_dense(self, default_value: ArrayLike = None) -> np.ndarray[Any, Any]:
        """Returns a dense array, padded with ``default_value``."""
        filling = default_value
        if filling is None:
            filling = b"" if self.values.dtype == STRING else 0
        dense = np.full(self.dense_shape, filling, self.values.dtype)
        dense[tuple(self.indices.T)] = self.values
        return dense


def parse_single_example(
    serialized: bytes, features: Specs, example_names: Any = None, name: str | None = None
) -> dict[str, Any]:
    """Returns the features of one serialized ``tf.train.Example``.

    A ``FixedLenFeature`` becomes an array of its shape, a ``VarLenFeature`` a vector, a
    ``FixedLenSequenceFeature`` an array of rows.

    Differs from TensorFlow: a ``VarLenFeature`` of one example is a dense vector, not a sparse one.

    >>> from stratagem.io import FixedLenFeature, parse_single_example
    >>> from stratagem._src.data.tfrecord.example_message import messages
    >>> example = messages().Example()
    >>> example.features.feature["x"].int64_list.value.extend([1, 2])
    >>> parse_single_example(example.SerializeToString(), {"x": FixedLenFeature([2], "int64")})
    {'x': array([1, 2])}

    Raises:
        DataLossError: If the bytes are not an example.
        InvalidArgumentError: If a feature is missing, or has another type or number of values.
    """
    _check_specs_of_example(features)
    return _parse(serialized, features, "")


def parse_example(
    serialized: ArrayLike, features: Specs, example_names: Any = None, name: str | None = None
) -> dict[str, Any]:
    """Returns the features of a batch of serialized ``tf.train.Example`` messages.

    A ``FixedLenFeature`` becomes an array with a leading batch dimension, a ``VarLenFeature`` becomes
    ``SparseValues``.

    >>> from stratagem.io import VarLenFeature, parse_example
    >>> from stratagem._src.data.tfrecord.example_message import messages
    >>> example = messages().Example()
    >>> example.features.feature["x"].int64_list.value.extend([1, 2])
    >>> batch = [example.SerializeToString(), messages().Example().SerializeToString()]
    >>> parse_example(batch, {"x": VarLenFeature("int64")})["x"].to_dense().tolist()
    [[1, 2], [0, 0]]

    Args:
        serialized: A vector of ``bytes``.
        features: The expected features, by name.
        example_names: Ignored.
        name: Ignored.
    """
    _check_specs_of_example(features)
    records = to_array(serialized)
    if records.ndim != 1 or records.dtype != STRING:
        raise InvalidArgumentError(
            f"serialized must be a vector of bytes, got {records.dtype} of shape {records.shape}. "
            "Use parse_single_example for one record."
        )
    parsed = [
        _parse(record, features, f"record {number}: ") for number, record in enumerate(records)
    ]
    result: dict[str, Any] = {}
    for name, spec in features.items():
        column = [row[name] for row in parsed]
        if isinstance(spec, VarLenFeature):
            result[name] = _sparse(column, spec.dtype)
        elif isinstance(spec, FixedLenSequenceFeature):
            result[name] = _padded(column, spec)
        else:
            shape = (len(column), *spec.shape)
            dense = np.empty(shape, spec.dtype)
            for position, value in enumerate(column):
                dense[position] = value
            result[name] = dense
    return result


def parse_single_sequence_example(
    serialized: bytes,
    context_features: Specs | None = None,
    sequence_features: Specs | None = None,
    example_name: str | None = None,
    name: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the context and the sequences of one serialized ``tf.train.SequenceExample``.

    A sequence of ``FixedLenSequenceFeature`` becomes an array with a row per step, one of ``VarLenFeature``
    becomes ``SparseValues``. The context is parsed as by ``parse_single_example``.

    >>> from stratagem.io import FixedLenSequenceFeature, parse_single_sequence_example
    >>> from stratagem._src.data.tfrecord.example_message import messages
    >>> record = messages().SequenceExample()
    >>> for word in (3, 4):
    ...     step = record.feature_lists.feature_list["words"].feature.add()
    ...     step.int64_list.value.append(word)
    >>> words = {"words": FixedLenSequenceFeature([], "int64")}
    >>> parse_single_sequence_example(record.SerializeToString(), sequence_features=words)[1]
    {'words': array([3, 4])}

    Raises:
        DataLossError: If the bytes are not such an example.
        InvalidArgumentError: If a feature is missing, or has another type or number of values.
    """
    for features in (context_features, sequence_features):
        if features is not None:
            _check_specs(features)
    if not context_features and not sequence_features:
        raise InvalidArgumentError("Pass context_features, sequence_features, or both.")
    record = _message("SequenceExample", serialized, "")
    found, lists = record.context.feature, record.feature_lists.feature_list
    context = {
        key: _values(found.get(key), key, spec, "")
        for key, spec in (context_features or {}).items()
    }
    return context, {
        key: _sequence(lists.get(key), key, spec) for key, spec in (sequence_features or {}).items()
    }


def _sequence(found: Any, name: str, spec: Feature) -> Any:
    """Returns the steps of one sequence."""
    steps = [] if found is None else found.feature
    if isinstance(spec, VarLenFeature):
        return _sparse([_values(step, name, spec, "") for step in steps], spec.dtype)
    if not isinstance(spec, FixedLenSequenceFeature):
        raise InvalidArgumentError(
            f"sequence_features[{name!r}] must be a FixedLenSequenceFeature or a VarLenFeature, got "
            f"{spec!r}."
        )
    if found is None and not spec.allow_missing:
        raise InvalidArgumentError(
            f"The sequence {name!r} is missing. Pass allow_missing=True for an empty one."
        )
    shape: Any = tuple(spec.shape)
    step_spec = FixedLenFeature(spec.shape, spec.dtype)
    rows = [_values(step, name, step_spec, f"step {n}: ") for n, step in enumerate(steps)]
    result = np.empty((len(rows), *shape), spec.dtype)
    for number, row in enumerate(rows):
        result[number] = row
    return result


def _check_specs(features: Specs) -> None:
    if not isinstance(features, Mapping) or not features:
        raise InvalidArgumentError(f"features must be a dict of name to feature, got {features!r}.")
    for name, spec in features.items():
        if not isinstance(spec, Feature):
            raise InvalidArgumentError(
                f"features[{name!r}] must be a FixedLenFeature, a FixedLenSequenceFeature or a "
                f"VarLenFeature, got {spec!r}."
            )


def _check_specs_of_example(features: Specs) -> None:
    _check_specs(features)
    for name, spec in features.items():
        if isinstance(spec, FixedLenSequenceFeature) and not spec.allow_missing:
            raise InvalidArgumentError(
                f"features[{name!r}]: a FixedLenSequenceFeature of a tf.train.Example needs "
                "allow_missing=True: a record without the feature has no rows."
            )


def _parse(serialized: ArrayLike, features: Specs, where: str) -> dict[str, Any]:
    found = _message("Example", serialized, where).features.feature
    return {name: _values(found.get(name), name, spec, where) for name, spec in features.items()}


def _message(kind: str, serialized: ArrayLike, where: str) -> Any:
    from google.protobuf.message import DecodeError

    if isinstance(serialized, np.ndarray):  # an object array: bytes() would return a pointer
        serialized = serialized.item()
    try:
        return getattr(messages(), kind).FromString(bytes(serialized))
    except DecodeError as error:
        raise DataLossError(f"{where}Not a serialized tf.train.{kind}: {error}.") from error


def _values(feature: Any, name: str, spec: Feature, where: str) -> Any:
    expected = _LISTS[spec.dtype]
    kind = None if feature is None else feature.WhichOneof("kind")
    if kind is not None and kind != expected:
        raise InvalidArgumentError(
            f"{where}Feature {name!r} must be a {expected}, as its dtype is {spec.dtype}, "
            f"got a {kind}."
        )
    values = np.empty(0, spec.dtype)
    if kind is not None:
        items = getattr(feature, kind).value
        values = np.fromiter(items, spec.dtype, len(items))
    if isinstance(spec, VarLenFeature):
        return values
    if isinstance(spec, FixedLenSequenceFeature):
        size = spec.shape.num_elements()
        if not size or len(values) % size:
            raise InvalidArgumentError(
                f"{where}Feature {name!r} must have rows of {size} values, got {len(values)} values."
            )
        return values.reshape(-1, *spec.shape)
    if kind is None or (spec.default is not None and not len(values)):
        if spec.default is None:
            raise InvalidArgumentError(
                f"{where}Feature {name!r} is missing. Give it a default_value, or use "
                "VarLenFeature."
            )
        return spec.default.copy()[()]
    if len(values) != spec.shape.num_elements():
        raise InvalidArgumentError(
            f"{where}Feature {name!r} must have {spec.shape.num_elements()} values for the shape "
            f"{spec.shape}, got {len(values)}."
        )
    shape: Any = tuple(spec.shape)
    return values.reshape(shape)[()]


def _padded(
    column: list[np.ndarray[Any, Any]], spec: FixedLenSequenceFeature
) -> np.ndarray[Any, Any]:
    longest = max((len(rows) for rows in column), default=0)
    shape: Any = (len(column), longest, *spec.shape)
    result = np.full(shape, spec.default, spec.dtype)
    for number, rows in enumerate(column):
        result[number, : len(rows)] = rows
    return result


def _sparse(column: list[np.ndarray[Any, Any]], dtype: np.dtype[Any]) -> SparseValues:
    indices = [(row, place) for row, values in enumerate(column) for place in range(len(values))]
    longest = max((len(values) for values in column), default=0)
    return SparseValues(
        np.array(indices, np.int64).reshape(-1, 2),
        np.concatenate([np.empty(0, dtype), *column]),
        np.array([len(column), longest], np.int64),
    )
