"""``keras.callbacks.TensorBoard`` without TensorFlow: our own summaries write its files."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import keras

from stratagem._src.telemetry.summary.recording import histogram, image, scalar
from stratagem._src.telemetry.summary.recording_state import record_if
from stratagem._src.telemetry.summary.writer import create_file_writer

__all__ = ["write_without_tensorflow"]

# What the callback uses of tf.summary, traces of graphs apart.
_OWN_SUMMARY = SimpleNamespace(
    create_file_writer=create_file_writer,
    histogram=histogram,
    image=image,
    record_if=record_if,
    scalar=scalar,
)


def write_without_tensorflow() -> None:
    """Makes the callback use our summaries where TensorFlow is not installed.

    It then writes no graph of the model, which only TensorFlow's summaries can hold.
    """
    if importlib.util.find_spec("tensorflow") is None:
        keras.callbacks.TensorBoard.summary = property(lambda callback: _OWN_SUMMARY)
        keras.callbacks.TensorBoard._write_keras_model_summary = _write_no_graph


def _write_no_graph(callback: Any) -> None:
    """Takes the place of what writes the model's layers as JSON."""
