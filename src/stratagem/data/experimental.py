"""``tf.data.experimental``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.data.experimental import (
    assert_cardinality,
    cardinality,
    choose_from_datasets,
    sample_from_datasets,
)
from stratagem._src.data.options import (
    AUTOTUNE,
    INFINITE_CARDINALITY,
    SHARD_HINT,
    UNKNOWN_CARDINALITY,
    AutoShardPolicy,
    DistributeOptions,
)

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "SHARD_HINT",
    "UNKNOWN_CARDINALITY",
    "AutoShardPolicy",
    "DistributeOptions",
    "assert_cardinality",
    "cardinality",
    "choose_from_datasets",
    "sample_from_datasets",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
