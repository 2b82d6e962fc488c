"""``ElasticRun``: a function that is called until it has come to its end, with whoever is there."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

from stratagem._src.cluster.elastic_environment import START_AGAIN
from stratagem._src.control_plane.elastic_job import ElasticJob, JobOverError, LeftBehindError
from stratagem._src.control_plane.join import joined_cluster
from stratagem._src.core.errors import ContextError
from stratagem._src.mesh.dispatch_queue import process_watch
from stratagem._src.process.hard_exit import end_process
from stratagem._src.strategies.multi_worker_extended import MultiWorkerExtended
from stratagem._src.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy
from stratagem._src.training.elastic.agreed_state import Boundary, agree_on_boundary
from stratagem._src.training.elastic.elastic_loop import ElasticLoop, first_place
from stratagem._src.training.elastic.kept_values import KeptValues, keep_values

__all__ = ["ElasticRun"]

_log = logging.getLogger("stratagem")


class _FormAnew(BaseException):
    """Others wait to be let in. Not an ``Exception``: the user's code is not to catch it."""


class ElasticRun:
    """Runs a function with the workers of an elastic job.

    Args:
        strategy: A strategy that belongs to one.
    """

    def __init__(self, strategy: MultiWorkerMirroredStrategy) -> None:
        assert strategy.elastic_job is not None
        self._strategy = strategy
        self._job: ElasticJob = strategy.elastic_job
        extended = strategy.extended
        assert isinstance(extended, MultiWorkerExtended)
        self._extended = extended
        self._boundary = Boundary(0, None, KeptValues((), (), ()))
        if self._job.council.boundary > 0:
            raise ContextError(
                "A job has one elastic run, and this one has begun or come to its end already. Put what is "
                "to go on when workers are lost into one function."
            )

    def run(self, train: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Calls ``train(loop, *args, **kwargs)`` until it returns in all workers."""
        if self._job.is_waiting:
            self._boundary = Boundary(0, None, keep_values(self._extended, None))
            self._go_on()
        else:
            self._reach(self._first_place())
        while True:
            loop = ElasticLoop(self._strategy, self._boundary.place, self._reach, self._arrive)
            try:
                result = train(loop, *args, **kwargs)
                self._end_together()
            except _FormAnew:
                _log.info("Workers are let in.")
            except Exception as error:
                if not self._have_lost_others():
                    raise
                _log.warning("The rest of the workers go on. %s", error)
            else:
                self._job.finish()
                return result
            finally:
                loop.close()
            if not self._go_on():
                return None

    # --- boundaries -------------------------------------------------------------------------------------

    def _reach(self, place: Any) -> None:
        """Notes that all that came before is done, and will not be done again."""
        values = keep_values(self._extended, self._boundary.values)
        self._boundary = Boundary(self._boundary.number + 1, place, values)
        if self._job.check_pause(self._boundary.number):
            raise _FormAnew

    def _first_place(self) -> Any:
        seed = self._extended.leader_value(
            np.uint32(secrets.randbits(32)), "seed of the elastic run"
        )
        return first_place(int(seed))

    def _arrive(self) -> None:
        self._boundary.values.put_back()

    def _end_together(self) -> None:
        if self._extended.replica_group.spans_processes:
            process_watch().exchange("end of the elastic run", None, "the end of the elastic run")

    # --- losses -----------------------------------------------------------------------------------------

    def _have_lost_others(self) -> bool:
        joined = joined_cluster()
        return (
            joined is not None and joined.watch.waits_for_programs and joined.watch.has_lost_others
        )

    def _go_on(self) -> bool:
        """Forms anew with whoever is there; returns whether there is anything left to do."""
        self._boundary.values.take_to_host(self._extended.first_values())
        while True:
            try:
                self._strategy.form_anew()
                self._boundary = agree_on_boundary(self._extended, self._boundary)
            except JobOverError as error:
                if self._boundary.number == 0:
                    end_process(0, str(error))
                self._job.finish()
                return False
            except LeftBehindError as error:
                end_process(START_AGAIN, f"{error} It ends, to be started again.")
            except Exception:
                if not self._have_lost_others():
                    raise
                self._boundary.values.take_to_host(self._extended.first_values())
            else:
                return True
