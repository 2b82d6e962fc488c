"""Writes a checkpoint in TensorFlow's format, with what TensorFlow never writes: snappy, wrong slices."""

import struct

import numpy as np
import pyarrow
from google_crc32c import value as crc32c

from stratagem._src.checkpoint.tensorflow.bundle import slice_key
from stratagem._src.checkpoint.tensorflow.messages import _classes
from stratagem._src.checkpoint.tensorflow.sstable import masked_checksum

DTYPES = {"float32": 1, "int64": 9, "variant": 21}


def varint(number):
    data = b""
    while number >= 0x80:
        data += bytes([number & 0x7F | 0x80])
        number >>= 7
    return data + bytes([number])


def block(entries):
    data = b"".join(
        b"\0" + varint(len(key)) + varint(len(value)) + key + value for key, value in entries
    )
    return data + struct.pack("<II", 0, 1)


def write_table(path, contents, *, snappy=False):
    """Writes an SSTable with one data block."""
    data = b""

    def add(entries):
        nonlocal data
        made = block(entries)
        if snappy:
            made = pyarrow.Codec("snappy").compress(made, asbytes=True)
        handle = varint(len(data)) + varint(len(made))
        made += bytes([snappy])
        data += made + struct.pack("<I", masked_checksum(crc32c(made)))
        return handle

    first = add(sorted(contents.items()))
    meta, index = add([]), add([(b"~", first)])
    footer = (meta + index).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    path.write_bytes(data + footer)


def write_bundle(
    prefix, tensors, *, slices=(), dtype=None, snappy=False, min_consumer=0, big=False
):
    """Writes tensors; ``slices`` are ``(name, shape, starts, array)`` of partitioned ones."""
    classes = _classes()
    header = classes["BundleHeader"](num_shards=1, endianness=int(big))
    header.version.min_consumer = min_consumer
    table, data = {b"": header.SerializeToString()}, b""

    def entry(array, kind=None):
        nonlocal data
        made = classes["BundleEntry"](dtype=DTYPES[kind or array.dtype.name], offset=len(data))
        made.size, made.crc32c = array.nbytes, masked_checksum(crc32c(array.tobytes()))
        for size in array.shape:
            made.shape.dim.add(size=size)
        data += array.tobytes()
        return made

    for name, array in tensors.items():
        table[name.encode()] = entry(array, dtype).SerializeToString()
    whole = {}
    for name, shape, starts, array in slices:
        extents = list(zip(starts, array.shape, strict=True))
        table[slice_key(name, extents)] = entry(array).SerializeToString()
        full = whole.setdefault(name, classes["BundleEntry"](dtype=DTYPES[array.dtype.name]))
        if not full.slices:
            for size in shape:
                full.shape.dim.add(size=size)
        part = full.slices.add()
        for start, length in extents:
            part.extent.add(start=start, length=length)
    table |= {name.encode(): made.SerializeToString() for name, made in whole.items()}
    write_table(prefix.with_name(prefix.name + ".index"), table, snappy=snappy)
    prefix.with_name(prefix.name + ".data-00000-of-00001").write_bytes(data)
    return prefix


def ones(*shape):
    return np.ones(shape, np.float32)
