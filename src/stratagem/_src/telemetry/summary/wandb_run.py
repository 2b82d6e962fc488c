"""``WandbRun``: summaries in a run of Weights & Biases."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from stratagem._src.core.errors import MissingExtraError
from stratagem._src.core.extras import install_hint
from stratagem._src.process.fork import ProcessOwner
from stratagem._src.telemetry.summary.summaries import Histogram, Images, Scalar, Summary

__all__ = ["WandbRun"]

_STEP = "global_step"


class WandbRun:
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
        self._library = _library()
        self._is_mine = run is None
        self._run = self._library.init(**settings) if run is None else run
        self._names: set[str] = set()
        self._is_closed = False
        self._owner = ProcessOwner("a summary writer")

    def write(self, name: str, summary: Summary, step: int) -> None:
        """Logs one summary, with its step as the metric ``global_step``."""
        self._owner.check()
        if self._is_closed:
            return
        if name not in self._names:
            # wandb's own steps may only grow: summaries of an earlier step would be dropped.
            self._run.define_metric(_STEP, hidden=True)
            self._run.define_metric(name, step_metric=_STEP)
            self._names.add(name)
        self._run.log({name: self._value(summary), _STEP: step})

    def flush(self) -> None:
        """Does nothing: the run's own process stores what was logged."""

    def close(self) -> None:
        """Ends the run, if it was started here."""
        if not self._owner.is_here:
            return
        is_open, self._is_closed = not self._is_closed, True
        if is_open and self._is_mine:
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


def _library() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise MissingExtraError(
            "create_wandb_writer needs wandb, which is not installed. " + install_hint("wandb")
        ) from error
    return wandb
