"""``ElasticRun``: runs a training function to its end, with whichever workers are alive."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

from stratagem._src.cluster.elastic_environment import RESTART_EXIT_CODE
from stratagem._src.control_plane.elastic_job import ElasticJob, JobOverError, LeftBehindError
from stratagem._src.control_plane.join import joined_cluster
from stratagem._src.core.errors import ContextError
from stratagem._src.core.types import PyTree
from stratagem._src.mesh.process_monitor import process_monitor
from stratagem._src.process.hard_exit import end_process
from stratagem._src.strategies.multi_worker_extended import MultiWorkerExtended
from stratagem._src.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy
from stratagem._src.telemetry.measurement.recorder import activity
from stratagem._src.training.elastic.boundary import Boundary, agree_on_boundary
from stratagem._src.training.elastic.elastic_loop import ElasticLoop, first_place
from stratagem._src.training.elastic.recovery_report import RecoveryReport
from stratagem._src.training.elastic.variable_snapshot import VariableSnapshot, take_snapshot

__all__ = ["ElasticRun"]

_log = logging.getLogger("stratagem")


class _RerendezvousRequested(BaseException):
    """Joining workers wait for admission. Not an ``Exception``, so that user code does not catch it."""


class ElasticRun:
    """Runs a function with the workers of an elastic job.

    Args:
        strategy: The strategy of an elastic job.
    """

    def __init__(self, strategy: MultiWorkerMirroredStrategy) -> None:
        assert strategy.elastic_job is not None
        self._strategy = strategy
        self._job: ElasticJob = strategy.elastic_job
        extended = strategy.extended
        assert isinstance(extended, MultiWorkerExtended)
        self._extended = extended
        self._boundary = Boundary(0, None, VariableSnapshot((), (), ()))
        self._recovery: RecoveryReport | None = None
        if self._job.peers.boundary > 0:
            raise ContextError(
                "A job must have at most one elastic run, and this one has already started or finished. "
                "Put everything that must survive the loss of workers into one function."
            )

    def run(self, train: Callable[..., Any], args: PyTree, kwargs: PyTree) -> Any:
        """Calls ``train(loop, *args, **kwargs)`` until it returns in all workers."""
        if self._job.is_waiting:
            self._boundary = Boundary(0, None, take_snapshot(self._extended, None))
            self._resume()
        else:
            self._reach(self._first_place())
        while True:
            loop = ElasticLoop(self._strategy, self._boundary.place, self._reach, self._arrive)
            try:
                result = train(loop, *args, **kwargs)
                self._end_together()
            except _RerendezvousRequested:
                _log.info("Admitting joining workers.")
            except Exception as error:
                if not self._have_lost_others():
                    raise
                _log.warning("The remaining workers continue. %s", error)
            else:
                self._job.finish()
                return result
            finally:
                loop.close()
            self._recovery = RecoveryReport(self._job.generation)
            if not self._resume():
                return None
            self._recovery.resume(self._job.generation, self._job.me, self._boundary)

    # --- boundaries -------------------------------------------------------------------------------------

    def _reach(self, place: Any) -> None:
        """Commits everything up to this boundary: it will not run again."""
        # Before the pause is checked: workers that re-form here resume from this boundary, not from the
        # one before.
        values = take_snapshot(self._extended, self._boundary.values)
        self._boundary = Boundary(self._boundary.number + 1, place, values)
        if self._recovery is not None:
            self._recovery.finish()
            self._recovery = None
        if self._job.check_pause(self._boundary.number):
            raise _RerendezvousRequested

    def _first_place(self) -> Any:
        seed = self._extended.leader_value(
            np.uint32(secrets.randbits(32)), "seed of the elastic run"
        )
        return first_place(int(seed))

    def _arrive(self) -> None:
        self._boundary.values.restore()

    def _end_together(self) -> None:
        if self._extended.replica_group.spans_processes:
            process_monitor().all_gather_object(
                "end of the elastic run", None, "the end of the elastic run"
            )

    # --- losses -----------------------------------------------------------------------------------------

    def _have_lost_others(self) -> bool:
        joined = joined_cluster()
        return (
            joined is not None and joined.watch.waits_for_programs and joined.watch.has_lost_others
        )

    def _resume(self) -> bool:
        """Re-forms the cluster with the workers that are alive; returns whether work is left to do."""
        with activity("recovering"):
            return self._re_form()

    def _re_form(self) -> bool:
        # The devices that hold the values belong to the generation that ends now.
        self._boundary.values.move_to_host(self._extended.first_values())
        while True:
            try:
                self._strategy.rerendezvous()
                self._boundary = agree_on_boundary(self._extended, self._boundary)
            except JobOverError as error:
                # It waited to be admitted and has run nothing, so there is nothing to return.
                if self._boundary.number == 0:
                    end_process(0, str(error))
                self._job.finish()
                return False
            except LeftBehindError as error:
                end_process(RESTART_EXIT_CODE, f"{error} It exits, to be restarted.")
            except Exception:
                if not self._have_lost_others():
                    raise
                self._boundary.values.move_to_host(self._extended.first_values())
            else:
                return True
