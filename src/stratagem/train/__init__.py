"""Names that TensorFlow keeps under ``tf.train``: clusters, example records, optimizers, checkpoints."""

from typing import TYPE_CHECKING

from stratagem._src.cluster import ClusterDef, ClusterSpec, JobDef, ServerDef
from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.data.tfrecord.example_message import (
    BytesList,
    Example,
    Feature,
    Features,
    FloatList,
    Int64List,
)
from stratagem._src.training.checkpoint import Checkpoint, latest_checkpoint
from stratagem._src.training.optimizer import Optimizer

__all__ = [
    "BytesList",
    "Checkpoint",
    "ClusterDef",
    "ClusterSpec",
    "Example",
    "Feature",
    "Features",
    "FloatList",
    "Int64List",
    "JobDef",
    "Optimizer",
    "ServerDef",
    "latest_checkpoint",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
