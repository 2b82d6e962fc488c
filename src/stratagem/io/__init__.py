"""Writing TFRecord files, and parsing the ``tf.train.Example`` messages in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.data.tfrecord.features import FixedLenFeature, VarLenFeature
from stratagem._src.data.tfrecord.parse import SparseValues, parse_example, parse_single_example
from stratagem._src.data.tfrecord.writer import TFRecordOptions, TFRecordWriter

__all__ = [
    "FixedLenFeature",
    "SparseValues",
    "TFRecordOptions",
    "TFRecordWriter",
    "VarLenFeature",
    "parse_example",
    "parse_single_example",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
