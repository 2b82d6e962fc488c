"""``tf.io.serialize_tensor`` and ``parse_tensor``: TensorFlow's ``TensorProto`` format."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np

from stratagem._src.core.dtypes import is_host_only
from stratagem._src.core.errors import DataLossError, InvalidArgumentError
from stratagem._src.core.types import ArrayLike, DTypeLike, StringLike
from stratagem._src.tensorflow_api.conversion import as_dtype, concrete, strings
from stratagem._src.tensorflow_api.host_tensor import HostTensor

__all__ = ["parse_tensor", "serialize_tensor"]

# TensorFlow's dtype enum, and the TensorProto field for values of the dtype.
_DTYPES: dict[int, tuple[Any, str]] = {
    1: (np.float32, "float_val"),
    2: (np.float64, "double_val"),
    3: (np.int32, "int_val"),
    4: (np.uint8, "int_val"),
    5: (np.int16, "int_val"),
    6: (np.int8, "int_val"),
    7: (np.object_, "string_val"),
    8: (np.complex64, "scomplex_val"),
    9: (np.int64, "int64_val"),
    10: (np.bool_, "bool_val"),
    14: (ml_dtypes.bfloat16, "half_val"),
    17: (np.uint16, "int_val"),
    18: (np.complex128, "dcomplex_val"),
    19: (np.float16, "half_val"),
    22: (np.uint32, "uint32_val"),
    23: (np.uint64, "uint64_val"),
}


@functools.cache
def _message() -> Any:
    """Returns the message class of ``TensorProto``, with the fields in use."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="stratagem/tensor.proto", package="tensorflow", syntax="proto3"
    )
    shape = file.message_type.add(name="TensorShapeProto")
    size = shape.nested_type.add(name="Dim")
    size.field.add(name="size", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_INT64)
    shape.field.add(
        name="dim",
        number=2,
        label=field.LABEL_REPEATED,
        type=field.TYPE_MESSAGE,
        type_name=".tensorflow.TensorShapeProto.Dim",
    )
    proto = file.message_type.add(name="TensorProto")
    proto.field.add(name="dtype", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_INT32)
    proto.field.add(
        name="tensor_shape",
        number=2,
        label=field.LABEL_OPTIONAL,
        type=field.TYPE_MESSAGE,
        type_name=".tensorflow.TensorShapeProto",
    )
    proto.field.add(
        name="tensor_content", number=4, label=field.LABEL_OPTIONAL, type=field.TYPE_BYTES
    )
    for number, name, kind in (
        (5, "float_val", field.TYPE_FLOAT),
        (6, "double_val", field.TYPE_DOUBLE),
        (7, "int_val", field.TYPE_INT32),
        (8, "string_val", field.TYPE_BYTES),
        (9, "scomplex_val", field.TYPE_FLOAT),
        (10, "int64_val", field.TYPE_INT64),
        (11, "bool_val", field.TYPE_BOOL),
        (12, "dcomplex_val", field.TYPE_DOUBLE),
        (13, "half_val", field.TYPE_INT32),
        (16, "uint32_val", field.TYPE_UINT32),
        (17, "uint64_val", field.TYPE_UINT64),
    ):
        proto.field.add(name=name, number=number, label=field.LABEL_REPEATED, type=kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.TensorProto"))


def serialize_tensor(tensor: ArrayLike, name: str | None = None) -> HostTensor:
    """Serializes an array as a ``TensorProto``, in TensorFlow's format.

    >>> parse_tensor(serialize_tensor(np.array([1, 2], np.int32)), "int32")
    HostTensor([1, 2], dtype=int32)
    """
    array = concrete(tensor)
    if array is None:
        raise InvalidArgumentError(
            "tf.io.serialize_tensor runs on the host, got a traced array. Call it in Dataset.map or "
            "outside compiled code."
        )
    if not hasattr(tensor, "dtype") and not is_host_only(array.dtype):
        from stratagem._src.tensorflow_api import conversion

        array = np.asarray(conversion.as_tensor(tensor))
    elif is_host_only(array.dtype):
        array = np.asarray(strings("io.serialize_tensor", tensor))
    number = next(key for key, (dtype, _) in _DTYPES.items() if np.dtype(dtype) == array.dtype)
    proto = _message()(dtype=number)
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    proto.tensor_shape.SetInParent()
    if array.dtype == np.object_:
        proto.string_val.extend(array.ravel().tolist())
    else:
        proto.tensor_content = array.tobytes()
    made = np.empty((), np.object_)
    made[()] = proto.SerializeToString()
    return HostTensor.of(made)


def parse_tensor(
    serialized: StringLike, out_type: DTypeLike, name: str | None = None
) -> HostTensor:
    """Parses a ``TensorProto``, which must have dtype ``out_type``.

    >>> parse_tensor(serialize_tensor("text"), "string").numpy()
    b'text'
    """
    from google.protobuf.message import DecodeError

    data = strings("io.parse_tensor", serialized)
    if data.ndim:
        raise InvalidArgumentError(f"tf.io.parse_tensor takes one string, got shape {data.shape}.")
    try:
        proto = _message().FromString(data.item())
    except DecodeError as error:
        raise DataLossError(f"Not a serialized TensorProto: {error}.") from None
    wanted = as_dtype(out_type)
    dtype, field = _DTYPES.get(proto.dtype, (None, ""))
    if dtype is None or np.dtype(dtype) != wanted:
        found = "an unknown dtype" if dtype is None else np.dtype(dtype).name
        raise InvalidArgumentError(f"tf.io.parse_tensor expects {wanted.name}, got {found}.")
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    count = int(np.prod(shape, dtype=np.int64))
    if proto.tensor_content:
        values = np.frombuffer(proto.tensor_content, wanted)
    elif field == "half_val":
        values = np.array(proto.half_val, np.uint16).view(wanted)
    elif field in ("scomplex_val", "dcomplex_val"):
        parts = np.array(getattr(proto, field), wanted.type(0).real.dtype)
        values = parts.view(wanted)
    else:
        values = np.array(list(getattr(proto, field)), wanted)
    if 0 < len(values) < count:  # the last value repeats
        values = np.concatenate([values, np.repeat(values[-1:], count - len(values))])
    elif not len(values):
        values = np.full(count, b"" if wanted == np.object_ else 0, wanted)
    return HostTensor.of(values.reshape(shape).copy())
