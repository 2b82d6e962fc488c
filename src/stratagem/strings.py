"""``tf.strings``: string functions, on the host."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.tensorflow_api.strings import (
    as_string,
    bytes_split,
    format,
    join,
    length,
    lower,
    ngrams,
    reduce_join,
    regex_full_match,
    regex_replace,
    split,
    strip,
    substr,
    to_hash_bucket_fast,
    to_number,
    unsorted_segment_join,
    upper,
)
from stratagem._src.tensorflow_api.strings_unicode import (
    unicode_decode,
    unicode_encode,
    unicode_split,
    unicode_transcode,
)

__all__ = [
    "as_string",
    "bytes_split",
    "format",
    "join",
    "length",
    "lower",
    "ngrams",
    "reduce_join",
    "regex_full_match",
    "regex_replace",
    "split",
    "strip",
    "substr",
    "to_hash_bucket_fast",
    "to_number",
    "unicode_decode",
    "unicode_encode",
    "unicode_split",
    "unicode_transcode",
    "unsorted_segment_join",
    "upper",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
