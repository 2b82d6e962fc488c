"""Partitioners: how variables are sharded over parameter servers."""

from stratagem._src.parameter_server.partitioners.fixed_shards_partitioner import (
    FixedShardsPartitioner,
)
from stratagem._src.parameter_server.partitioners.max_size_partitioner import MaxSizePartitioner
from stratagem._src.parameter_server.partitioners.min_size_partitioner import MinSizePartitioner
from stratagem._src.parameter_server.partitioners.partitioner import Partitioner
from stratagem._src.parameter_server.partitioners.shard_sizes import (
    num_shards_along_axis_0,
    shard_offsets,
    shard_sizes,
)

__all__ = [
    "FixedShardsPartitioner",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "Partitioner",
    "num_shards_along_axis_0",
    "shard_offsets",
    "shard_sizes",
]
