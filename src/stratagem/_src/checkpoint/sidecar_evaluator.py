"""``SidecarEvaluator``: evaluates checkpoints in a separate process while training continues."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stratagem._src.checkpoint.checkpoint import Checkpoint
from stratagem._src.checkpoint.format.checkpoint_path import checkpoint_path
from stratagem._src.checkpoint.locating import checkpoints_iterator
from stratagem._src.core.errors import DataLossError, NotFoundError
from stratagem._src.telemetry.summary import recording
from stratagem._src.telemetry.summary.writer import create_file_writer, create_noop_writer
from stratagem._src.variables.variable import Variable

__all__ = ["SidecarEvaluator"]

_log = logging.getLogger("stratagem")


class SidecarEvaluator:
    """Restores every new checkpoint of a training job, evaluates it, and writes summaries.

    It runs in a separate process (``stratagem run --evaluator``). Training does not wait for it:
    checkpoints are only read. Of several checkpoints that are saved during an evaluation, only the latest
    is evaluated; a checkpoint that training removes meanwhile is skipped.

    Differs from tf.keras.utils.SidecarEvaluator: it evaluates any function, for example
    ``lambda: model.evaluate(data, return_dict=True)``, not only a Keras model.

    Args:
        evaluate: Called without arguments after each restore; returns numbers by name.
        checkpoint: Contains the objects that ``evaluate`` uses; the rest of a saved checkpoint is ignored.
        checkpoint_dir: The directory that training saves to.
        log_dir: The directory for summaries; default none.
        step: A variable of the checkpoint that counts steps; default the number of the checkpoint.
        max_evaluations: Number of evaluations before it ends; default no limit.
        timeout: Seconds to wait for a new checkpoint before it ends; default no limit.
        timeout_fn: Called after each ``timeout``; it ends if this returns ``True``, otherwise it waits
            again.

    >>> import tempfile
    >>> import stratagem as sg
    >>> directory = tempfile.mkdtemp()
    >>> path = sg.train.Checkpoint(w=sg.Variable(3.0)).save(directory + "/ckpt")
    >>> w = sg.Variable(0.0)
    >>> evaluator = sg.train.SidecarEvaluator(
    ...     lambda: {"square": w * w}, sg.train.Checkpoint(w=w), directory, max_evaluations=1
    ... )
    >>> evaluator.start()
    {1: {'square': 9.0}}
    """

    def __init__(
        self,
        evaluate: Callable[[], Mapping[str, Any]],
        checkpoint: Checkpoint,
        checkpoint_dir: str | os.PathLike[str],
        *,
        log_dir: str | os.PathLike[str] | None = None,
        step: Variable | None = None,
        max_evaluations: int | None = None,
        timeout: float | None = None,
        timeout_fn: Callable[[], bool] | None = None,
    ) -> None:
        if max_evaluations is not None and max_evaluations < 1:
            raise ValueError(
                f"max_evaluations must be at least 1, got {max_evaluations}. Omit it for no limit."
            )
        self._evaluate = evaluate
        self._checkpoint = checkpoint
        self._directory = checkpoint_dir
        self._writer = create_noop_writer() if log_dir is None else create_file_writer(log_dir)
        self._step = step
        self._max_evaluations = max_evaluations
        self._timeout = timeout
        self._timeout_fn = timeout_fn

    def start(self) -> dict[int, dict[str, float]]:
        """Evaluates checkpoints until a limit is reached.

        Returns:
            The numbers of each evaluation, by step.
        """
        found: dict[int, dict[str, float]] = {}
        number = 0
        for path in checkpoints_iterator(
            self._directory, timeout=self._timeout, timeout_fn=self._timeout_fn
        ):
            if not self._restore(path):
                continue
            numbers = {name: float(np.asarray(v)) for name, v in self._evaluate().items()}
            # After the evaluation, which may build what the variable belongs to.
            step = _number_of(path) if self._step is None else int(np.asarray(self._step))
            self._record(numbers, step)
            found[step] = numbers
            number += 1
            words = ", ".join(f"{name} {value:.6g}" for name, value in numbers.items())
            _log.info("evaluated %s: %s", path, words)
            if number == self._max_evaluations:
                break
        return found

    def _restore(self, path: str) -> bool:
        try:
            self._checkpoint.restore(path).expect_partial()
        except (DataLossError, NotFoundError, OSError) as error:
            is_there = checkpoint_path(path).is_dir()
            gone = f"cannot be read: {error}" if is_there else "was removed meanwhile"
            _log.warning("skipping %s: it %s", path, gone)
            return False
        return True

    def _record(self, numbers: Mapping[str, float], step: int) -> None:
        with self._writer.as_default(step):
            for name, value in numbers.items():
                recording.scalar(name, value)


def _number_of(path: str) -> int:
    match = re.search(r"-(\d+)$", path)
    return int(match[1]) if match else 0
