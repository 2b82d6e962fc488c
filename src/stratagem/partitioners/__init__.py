"""How variables are split into shards over parameter servers."""

from stratagem.partitioners.fixed_shards_partitioner import FixedShardsPartitioner
from stratagem.partitioners.max_size_partitioner import MaxSizePartitioner
from stratagem.partitioners.min_size_partitioner import MinSizePartitioner
from stratagem.partitioners.partitioner import Partitioner
from stratagem.partitioners.shard_sizes import num_shards_along_axis_0, shard_offsets, shard_sizes

__all__ = [
    "FixedShardsPartitioner",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "Partitioner",
    "num_shards_along_axis_0",
    "shard_offsets",
    "shard_sizes",
]
