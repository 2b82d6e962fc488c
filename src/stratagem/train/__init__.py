"""Names that TensorFlow keeps under ``tf.train``: clusters and example records."""

from stratagem.cluster import ClusterDef, ClusterSpec, JobDef, ServerDef
from stratagem.io.example_message import (
    BytesList,
    Example,
    Feature,
    Features,
    FloatList,
    Int64List,
)

__all__ = [
    "BytesList",
    "ClusterDef",
    "ClusterSpec",
    "Example",
    "Feature",
    "Features",
    "FloatList",
    "Int64List",
    "JobDef",
    "ServerDef",
]
