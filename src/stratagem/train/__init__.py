"""``tf.train``: checkpoints, optimizers, cluster specifications and example records."""

from typing import TYPE_CHECKING

from stratagem._src.checkpoint.checkpoint import Checkpoint
from stratagem._src.checkpoint.locating import checkpoints_iterator, latest_checkpoint
from stratagem._src.checkpoint.manager import CheckpointManager
from stratagem._src.checkpoint.options import CheckpointOptions
from stratagem._src.checkpoint.tensorflow.checkpoint_reader import (
    list_variables,
    load_checkpoint,
    load_variable,
)
from stratagem._src.cluster import ClusterDef, ClusterSpec, JobDef, ServerDef
from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.data.tfrecord.example_message import (
    BytesList,
    Example,
    Feature,
    FeatureList,
    FeatureLists,
    Features,
    FloatList,
    Int64List,
    SequenceExample,
)
from stratagem._src.training.optimizer import Optimizer
from stratagem._src.training.precision_policy import PrecisionPolicy
from stratagem._src.training.progress import progress
from stratagem._src.training.report import report

if TYPE_CHECKING:
    from stratagem._src.checkpoint.sidecar_evaluator import SidecarEvaluator
    from stratagem._src.integrations.keras.elastic_fit import ElasticFit
    from stratagem._src.tensorflow_api.ema import ExponentialMovingAverage
    from stratagem._src.training.elastic.elastic import elastic
    from stratagem._src.training.elastic.elastic_loop import ElasticLoop

__all__ = [
    "BytesList",
    "Checkpoint",
    "CheckpointManager",
    "CheckpointOptions",
    "ClusterDef",
    "ClusterSpec",
    "ElasticFit",
    "ElasticLoop",
    "Example",
    "ExponentialMovingAverage",
    "Feature",
    "FeatureList",
    "FeatureLists",
    "Features",
    "FloatList",
    "Int64List",
    "JobDef",
    "Optimizer",
    "PrecisionPolicy",
    "SequenceExample",
    "ServerDef",
    "SidecarEvaluator",
    "checkpoints_iterator",
    "elastic",
    "latest_checkpoint",
    "list_variables",
    "load_checkpoint",
    "load_variable",
    "progress",
    "report",
]

# Loaded on first use, to keep `import stratagem` fast.
if not TYPE_CHECKING:
    __getattr__ = lazy_names(
        __name__,
        {
            "SidecarEvaluator": (
                "stratagem._src.checkpoint.sidecar_evaluator",
                "SidecarEvaluator",
            ),
            "ElasticFit": ("stratagem._src.integrations.keras.elastic_fit", "ElasticFit"),
            "ExponentialMovingAverage": (
                "stratagem._src.tensorflow_api.ema",
                "ExponentialMovingAverage",
            ),
            "ElasticLoop": ("stratagem._src.training.elastic.elastic_loop", "ElasticLoop"),
            "elastic": ("stratagem._src.training.elastic.elastic", "elastic"),
        },
    )
