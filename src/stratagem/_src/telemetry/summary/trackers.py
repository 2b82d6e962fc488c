"""Writers for CSV, JSON lines, Weights & Biases and MLflow, and several writers as one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.telemetry.summary.mlflow_run import MlflowRun
from stratagem._src.telemetry.summary.record_files import CsvFile, JsonLinesFile
from stratagem._src.telemetry.summary.summaries import Summary
from stratagem._src.telemetry.summary.wandb_run import WandbRun
from stratagem._src.telemetry.summary.writer import SummaryWriter

__all__ = [
    "combine_writers",
    "create_csv_writer",
    "create_jsonl_writer",
    "create_mlflow_writer",
    "create_wandb_writer",
]


def create_csv_writer(path: str | os.PathLike[str]) -> SummaryWriter:
    """Returns a writer of a CSV file with a row of step, name, value and time for each scalar or text.

    Other summaries are not written, with one warning. Not part of ``tf.summary``.

    Args:
        path: The file; created with the first summary. An existing file is continued.

    >>> import pathlib, tempfile
    >>> import stratagem as sg
    >>> path = tempfile.mkdtemp() + "/metrics.csv"
    >>> with sg.summary.create_csv_writer(path).as_default(step=3):
    ...     sg.summary.scalar("loss", 0.5)
    True
    >>> pathlib.Path(path).read_text().splitlines()[1].split(",")[:3]
    ['3', 'loss', '0.5']
    """
    file = os.fspath(path)
    return SummaryWriter(lambda: CsvFile(file))


def create_jsonl_writer(path: str | os.PathLike[str]) -> SummaryWriter:
    """Returns a writer of a file with a JSON object per line, for scalars, texts and histograms.

    Images are not written, with one warning. Not part of ``tf.summary``.

    Args:
        path: The file; created with the first summary. An existing file is continued.

    >>> import json, pathlib, tempfile
    >>> import stratagem as sg
    >>> path = tempfile.mkdtemp() + "/metrics.jsonl"
    >>> with sg.summary.create_jsonl_writer(path).as_default(step=3):
    ...     sg.summary.scalar("loss", 0.5)
    True
    >>> json.loads(pathlib.Path(path).read_text())["value"]
    0.5
    """
    file = os.fspath(path)
    return SummaryWriter(lambda: JsonLinesFile(file))


def create_wandb_writer(run: Any = None, **settings: Any) -> SummaryWriter:
    """Returns a writer that logs to Weights & Biases; needs ``stratagem[wandb]``.

    The step of a summary is the metric ``global_step``, which the charts have as x axis; so summaries may
    come in any order. Not part of ``tf.summary``.

    Args:
        run: A run of ``wandb.init``. It stays open when the writer is closed.
        **settings: Without a run, one is started with the first summary, in the leader only, by
            ``wandb.init(**settings)``: ``project``, ``name``, ``config``, ``mode="offline"`` and so on.

    Raises:
        InvalidArgumentError: If there are both a run and settings.

    >>> import stratagem as sg
    >>> writer = sg.summary.create_wandb_writer(project="digits", mode="offline")
    """
    if run is not None and settings:
        raise InvalidArgumentError(
            "create_wandb_writer logs to a run, or starts one with settings, got a run and "
            f"{sorted(settings)}. Pass the settings to wandb.init."
        )
    return SummaryWriter(lambda: WandbRun(run, settings))


def create_mlflow_writer(
    tracking_uri: str | None = None, experiment: str = "Default", run_id: str | None = None
) -> SummaryWriter:
    """Returns a writer that logs to MLflow; needs ``stratagem[mlflow]``.

    Scalars become metrics, which are sent in the background; images, texts and histograms become
    artifacts. The end of ``as_default()``, ``flush`` and ``close`` wait for the metrics, and raise MLflow's
    error if one could not be sent. Not part of ``tf.summary``.

    Args:
        tracking_uri: The server or store; by default MLflow's own, ``MLFLOW_TRACKING_URI``.
        experiment: The experiment in which a run is started with the first summary, in the leader only;
            created if it does not exist.
        run_id: A run to log to instead. It stays open when the writer is closed.

    >>> import stratagem as sg
    >>> writer = sg.summary.create_mlflow_writer("sqlite:///mlflow.db", experiment="digits")
    """
    return SummaryWriter(lambda: MlflowRun(tracking_uri, experiment, run_id))


def combine_writers(*writers: SummaryWriter) -> SummaryWriter:
    """Returns a writer that writes each summary with several ones. Not part of ``tf.summary``.

    >>> import os, tempfile
    >>> import stratagem as sg
    >>> folder = tempfile.mkdtemp()
    >>> writer = sg.summary.combine_writers(
    ...     sg.summary.create_file_writer(folder),
    ...     sg.summary.create_csv_writer(folder + "/metrics.csv"),
    ... )
    >>> with writer.as_default(step=1):
    ...     sg.summary.scalar("loss", 0.5)
    True
    >>> len(os.listdir(folder))
    2

    Args:
        *writers: The writers. Closing the combination closes them.
    """
    wrong = [writer for writer in writers if not isinstance(writer, SummaryWriter)]
    if wrong or not writers:
        raise InvalidArgumentError(
            "combine_writers needs one or more writers of sg.summary.create_..., got "
            f"{wrong[0] if wrong else 'none'!r}."
        )
    return SummaryWriter(lambda: _Writers(writers))


class _Writers:
    """Several writers as one tracker."""

    closes_itself: ClassVar[bool] = True  # each writer closes its own tracker

    def __init__(self, writers: Sequence[SummaryWriter]) -> None:
        self._writers = writers

    def write(self, name: str, summary: Summary, step: int) -> None:
        for writer in self._writers:
            if writer.is_writing:
                writer.write(name, summary, step)

    def flush(self) -> None:
        for writer in self._writers:
            writer.flush()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
