"""The protocol buffer messages of ``tf.train.Example`` and ``SequenceExample``, described in Python.

They are created on first use in a separate descriptor pool, so they do not collide with TensorFlow's in
the same process.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

__all__ = ["messages"]

_PACKAGE = "tensorflow"


@functools.cache
def messages() -> SimpleNamespace:
    """Returns the classes ``Example``, ``SequenceExample``, and those of their parts."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="stratagem/example.proto", package=_PACKAGE, syntax="proto3"
    )
    lists = {
        "BytesList": field.TYPE_BYTES,
        "FloatList": field.TYPE_FLOAT,
        "Int64List": field.TYPE_INT64,
    }
    for name, kind in lists.items():
        message = file.message_type.add(name=name)
        message.field.add(name="value", number=1, label=field.LABEL_REPEATED, type=kind)

    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(
        [("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")], 1
    ):
        feature.field.add(
            name=name,
            number=number,
            label=field.LABEL_OPTIONAL,
            type=field.TYPE_MESSAGE,
            type_name=f".{_PACKAGE}.{kind}",
            oneof_index=0,
        )

    def add_map(name: str, entry_name: str, part: str, kind: str) -> None:
        message = file.message_type.add(name=name)
        entry = message.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_STRING)
        entry.field.add(
            name="value",
            number=2,
            label=field.LABEL_OPTIONAL,
            type=field.TYPE_MESSAGE,
            type_name=f".{_PACKAGE}.{kind}",
        )
        message.field.add(
            name=part,
            number=1,
            label=field.LABEL_REPEATED,
            type=field.TYPE_MESSAGE,
            type_name=f".{_PACKAGE}.{name}.{entry_name}",
        )

    add_map("Features", "FeatureEntry", "feature", "Feature")
    add_map("FeatureLists", "FeatureListEntry", "feature_list", "FeatureList")
    feature_list = file.message_type.add(name="FeatureList")
    feature_list.field.add(
        name="feature",
        number=1,
        label=field.LABEL_REPEATED,
        type=field.TYPE_MESSAGE,
        type_name=f".{_PACKAGE}.Feature",
    )

    def add_message(name: str, **parts: str) -> None:
        message = file.message_type.add(name=name)
        for number, (part, kind) in enumerate(parts.items(), 1):
            message.field.add(
                name=part,
                number=number,
                label=field.LABEL_OPTIONAL,
                type=field.TYPE_MESSAGE,
                type_name=f".{_PACKAGE}.{kind}",
            )

    add_message("Example", features="Features")
    add_message("SequenceExample", context="Features", feature_lists="FeatureLists")

    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [
        *lists,
        "Feature",
        "Features",
        "FeatureList",
        "FeatureLists",
        "Example",
        "SequenceExample",
    ]
    return SimpleNamespace(
        **{
            name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
            for name in names
        }
    )


def __getattr__(name: str) -> Any:
    """Returns a message class, so that it can be imported by its name."""
    if name.startswith("_") or not hasattr(messages(), name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(messages(), name)
