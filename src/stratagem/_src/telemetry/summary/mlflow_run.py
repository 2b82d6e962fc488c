"""``MlflowRun``: summaries in a run of MLflow."""

from __future__ import annotations

import collections
from typing import Any, ClassVar
from urllib.parse import quote

from stratagem._src.telemetry.summary.summaries import Histogram, Images, Scalar, Summary
from stratagem._src.telemetry.summary.tracked_run import TrackedRun, import_tracker

__all__ = ["MlflowRun"]

# Bounds the memory that metrics take while the server is slow.
_MAX_PENDING = 10_000


class MlflowRun(TrackedRun):
    """Logs to a run. Scalars are sent in the background; other summaries, which are files, at once.

    Args:
        tracking_uri: The server or store; ``None`` for MLflow's default (``MLFLOW_TRACKING_URI``).
        experiment: The name of the experiment in which a run is started; created if it does not exist.
        run_id: A run to log to, which stays open; ``None`` to start one.

    Raises:
        MissingExtraError: If MLflow is not installed.
    """

    closes_itself: ClassVar[bool] = False

    def __init__(self, tracking_uri: str | None, experiment: str, run_id: str | None) -> None:
        self._client = import_tracker("mlflow", "MLflow").MlflowClient(tracking_uri=tracking_uri)
        super().__init__(is_mine=run_id is None)
        self._run_id = run_id if run_id is not None else self._start(experiment)
        self._pending: collections.deque[Any] = collections.deque()

    def _log(self, name: str, summary: Summary, step: int) -> None:
        if not isinstance(summary, Scalar):
            self._log_file(name, summary, step)
            return
        sent = self._client.log_metric(
            self._run_id, name, summary.value, step=step, synchronous=False
        )
        self._pending.append(sent)
        if len(self._pending) > _MAX_PENDING:
            self._wait_for_one()

    def _wait(self) -> None:
        """Waits for the scalars that are being sent.

        Raises:
            MlflowException: If one could not be sent, after MLflow's own retries.
        """
        while self._pending:
            self._wait_for_one()

    def _end(self) -> None:
        self._client.set_terminated(self._run_id)

    def _wait_for_one(self) -> None:
        try:
            sent = self._pending.popleft()
        except IndexError:  # another thread has taken it
            return
        sent.wait()

    def _start(self, experiment: str) -> str:
        found = self._client.get_experiment_by_name(experiment)
        if found is not None:
            return str(self._client.create_run(found.experiment_id).info.run_id)
        return str(self._client.create_run(self._client.create_experiment(experiment)).info.run_id)

    def _log_file(self, name: str, summary: Summary, step: int) -> None:
        if isinstance(summary, Images):
            for i, image in enumerate(summary.images):
                tag = name if i == 0 else f"{name}/{i}"
                self._client.log_image(self._run_id, image, key=tag, step=step, synchronous=True)
            return
        # Names may contain any character; MLflow's files may not.
        path = f"{quote(name, safe='/ ')}/{step}"
        if isinstance(summary, Histogram):
            counts, edges = summary.counts_and_edges()
            content = {"counts": counts, "edges": edges}
            self._client.log_dict(self._run_id, content, f"histograms/{path}.json")
        else:
            assert not isinstance(summary, Scalar)
            self._client.log_text(self._run_id, summary.text, f"texts/{path}.txt")
