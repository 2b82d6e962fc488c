"""``tf.io``: TFRecord files and example messages, files, images, and decoding of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.data.tfrecord.features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    VarLenFeature,
)
from stratagem._src.data.tfrecord.parse import (
    SparseValues,
    parse_example,
    parse_single_example,
    parse_single_sequence_example,
)
from stratagem._src.data.tfrecord.writer import TFRecordOptions, TFRecordWriter

if TYPE_CHECKING:
    from stratagem._src.tensorflow_api.image_codecs import (
        decode_and_crop_jpeg,
        decode_bmp,
        decode_gif,
        decode_image,
        decode_jpeg,
        decode_png,
        encode_jpeg,
        encode_png,
        extract_jpeg_shape,
        is_jpeg,
    )
    from stratagem._src.tensorflow_api.io_files import (
        decode_base64,
        decode_compressed,
        decode_csv,
        decode_raw,
        encode_base64,
        matching_files,
        read_file,
        write_file,
    )
    from stratagem._src.tensorflow_api.tensor_proto import parse_tensor, serialize_tensor
    from stratagem.io import gfile

__all__ = [
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "SparseValues",
    "TFRecordOptions",
    "TFRecordWriter",
    "VarLenFeature",
    "decode_and_crop_jpeg",
    "decode_base64",
    "decode_bmp",
    "decode_compressed",
    "decode_csv",
    "decode_gif",
    "decode_image",
    "decode_jpeg",
    "decode_png",
    "decode_raw",
    "encode_base64",
    "encode_jpeg",
    "encode_png",
    "extract_jpeg_shape",
    "gfile",
    "is_jpeg",
    "matching_files",
    "parse_example",
    "parse_single_example",
    "parse_single_sequence_example",
    "parse_tensor",
    "read_file",
    "serialize_tensor",
    "write_file",
]

# Loaded on first use: reading records needs none of them.
_FILES = {
    "image_codecs": (
        "decode_and_crop_jpeg decode_bmp decode_gif decode_image decode_jpeg decode_png encode_jpeg "
        "encode_png extract_jpeg_shape is_jpeg"
    ),
    "io_files": (
        "decode_base64 decode_compressed decode_csv decode_raw encode_base64 matching_files read_file "
        "write_file"
    ),
    "tensor_proto": "parse_tensor serialize_tensor",
}

if not TYPE_CHECKING:
    __getattr__ = lazy_names(
        __name__,
        {"gfile": ("stratagem.io.gfile", None)}
        | {
            name: (f"stratagem._src.tensorflow_api.{file}", name)
            for file, names in _FILES.items()
            for name in names.split()
        },
    )
