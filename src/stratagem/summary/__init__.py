"""``tf.summary``: scalars, histograms, images and text for TensorBoard and experiment trackers."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.telemetry.summary.recording import flush, histogram, image, scalar, text
from stratagem._src.telemetry.summary.recording_state import record_if, should_record_summaries
from stratagem._src.telemetry.summary.trackers import (
    combine_writers,
    create_csv_writer,
    create_jsonl_writer,
    create_mlflow_writer,
    create_wandb_writer,
)
from stratagem._src.telemetry.summary.writer import (
    SummaryWriter,
    create_file_writer,
    create_noop_writer,
)
from stratagem.summary import experimental

__all__ = [
    "SummaryWriter",
    "combine_writers",
    "create_csv_writer",
    "create_file_writer",
    "create_jsonl_writer",
    "create_mlflow_writer",
    "create_noop_writer",
    "create_wandb_writer",
    "experimental",
    "flush",
    "histogram",
    "image",
    "record_if",
    "scalar",
    "should_record_summaries",
    "text",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
