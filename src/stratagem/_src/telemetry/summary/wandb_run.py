"""``WandbRun``: summaries in a run of Weights & Biases."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from stratagem._src.telemetry.summary.summaries import Histogram, Images, Scalar, Summary
from stratagem._src.telemetry.summary.tracked_run import TrackedRun, import_tracker

__all__ = ["WandbRun"]

_STEP = "global_step"


class WandbRun(TrackedRun):
    """Logs to a run, which uploads in the background or, in offline mode, writes to disk.

    Args:
        run: A run to log to, which stays open; ``None`` to start one.
        settings: The arguments of ``wandb.init``, if one is started.

    Raises:
        MissingExtraError: If wandb is not installed.
    """

    # At exit wandb ends the run itself, and marks it as crashed if the program failed.
    closes_itself: ClassVar[bool] = True

    def __init__(self, run: Any, settings: dict[str, Any]) -> None:
        self._library = import_tracker("wandb", "wandb")
        super().__init__(is_mine=run is None)
        self._run = self._library.init(**settings) if run is None else run
        self._names: set[str] = set()

    def _log(self, name: str, summary: Summary, step: int) -> None:
        """Logs one summary, with its step as the metric ``global_step``."""
        if name not in self._names:
            # wandb's own steps may only grow: summaries of an earlier step would be dropped.
            self._run.define_metric(_STEP, hidden=True)
            self._run.define_metric(name, step_metric=_STEP)
            self._names.add(name)
        self._run.log({name: self._value(summary), _STEP: step})

    def _wait(self) -> None:
        """Does nothing: the run's own process stores what was logged."""

    def _end(self) -> None:
        self._run.finish()

    def _value(self, summary: Summary) -> Any:
        if isinstance(summary, Scalar):
            return summary.value
        if isinstance(summary, Images):
            return [self._library.Image(image) for image in summary.images]
        if isinstance(summary, Histogram):
            counts, edges = summary.counts_and_edges()
            return self._library.Histogram(np_histogram=(np.array(counts), np.array(edges)))
        return summary.text
