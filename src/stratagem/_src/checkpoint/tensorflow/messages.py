"""The protocol buffers in a TensorFlow checkpoint: entries of its index, and its object graph."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, TypeAlias

from stratagem._src.checkpoint.tensorflow.sstable import corrupt

__all__ = ["Message", "parse"]

Message: TypeAlias = Any
"""A message of one of the types below, with its fields as attributes."""

# Message type: field: number, type; a type in brackets is repeated, one with a capital is a message.
_TYPES: dict[str, dict[str, tuple[int, str]]] = {
    "Dimension": {"size": (1, "int64")},
    "Shape": {"dim": (2, "[Dimension]"), "unknown_rank": (3, "bool")},
    "Extent": {"start": (1, "int64"), "length": (2, "int64")},
    "Slice": {"extent": (1, "[Extent]")},
    "Version": {"producer": (1, "int32"), "min_consumer": (2, "int32")},
    "BundleHeader": {
        "num_shards": (1, "int32"),
        "endianness": (2, "int32"),
        "version": (3, "Version"),
    },
    "BundleEntry": {
        "dtype": (1, "int32"),
        "shape": (2, "Shape"),
        "shard_id": (3, "int32"),
        "offset": (4, "int64"),
        "size": (5, "int64"),
        "crc32c": (6, "fixed32"),
        "slices": (7, "[Slice]"),
    },
    "Child": {"node_id": (1, "int32"), "local_name": (2, "string")},
    "Attribute": {
        "name": (1, "string"),
        "full_name": (2, "string"),
        "checkpoint_key": (3, "string"),
    },
    "SlotVariable": {
        "original_variable_node_id": (1, "int32"),
        "slot_name": (2, "string"),
        "slot_variable_node_id": (3, "int32"),
    },
    "TrackableObject": {
        "children": (1, "[Child]"),
        "attributes": (2, "[Attribute]"),
        "slot_variables": (3, "[SlotVariable]"),
    },
    "ObjectGraph": {"nodes": (1, "[TrackableObject]")},
}


@functools.cache
def _classes() -> dict[str, Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    package = "stratagem.tensorflow_checkpoint"
    file = descriptor_pb2.FileDescriptorProto(
        name="stratagem/tensorflow_checkpoint.proto", package=package, syntax="proto3"
    )
    field = descriptor_pb2.FieldDescriptorProto
    for name, fields in _TYPES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            inner = kind.strip("[]")
            added = message.field.add(name=field_name, number=number)
            added.label = field.LABEL_REPEATED if kind != inner else field.LABEL_OPTIONAL
            if inner in _TYPES:
                added.type, added.type_name = field.TYPE_MESSAGE, f".{package}.{inner}"
            else:
                added.type = getattr(field, f"TYPE_{inner.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in _TYPES
    }


def parse(kind: str, data: bytes, path: Path) -> Message:
    """Returns a message.

    Args:
        kind: The name of its type.
        data: The message, serialized.
        path: The file that it is in, for the error.

    Raises:
        DataLossError: If it is not such a message.
    """
    from google.protobuf.message import DecodeError

    try:
        return _classes()[kind].FromString(data)
    except DecodeError as error:
        raise corrupt(path, f"it has a malformed {kind} ({error})") from error
