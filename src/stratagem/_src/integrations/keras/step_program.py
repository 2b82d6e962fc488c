"""One step of Keras as a program over the replicas, and how it is launched."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import starmap
from typing import Any

import jax

from stratagem._src.core import jax_settings
from stratagem._src.mesh.program_queue import (
    LAUNCH_LOCK,
    check_not_in_callback,
    note_launched,
    process_watch,
    wait_for_previous,
)
from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = ["StepProgram"]


class StepProgram:
    """A compiled ``step(state, batch)`` that returns ``(result, new_state)``.

    The step sees the batch of all replicas, as on one device; what it computes is divided.

    Args:
        step: The function, as of Keras: pure.
        group: The replicas.
        name: What it does; the same in all processes.
        gives_away: Whether the state is given to the program, which needs less memory. It is kept where
            other processes may be lost meanwhile and this one goes on.
    """

    def __init__(
        self, step: Callable[..., Any], group: ReplicaGroup, name: str, *, gives_away: bool
    ) -> None:
        self._group = group
        self._name = name
        keeps = group.spans_processes and process_watch().waits_for_programs
        self._compiled = _compile_step(step, group, gives_away=gives_away and not keeps)
        self._prepared: dict[Any, str] = {}

    def run(self, state: Any, batch: Any, results: list[Any]) -> None:
        """Runs the step and appends what it returns to ``results``.

        An interrupt can arrive between a call and an assignment, when the state has been given away
        already: a list that is extended from C has the new one then.
        """
        fingerprint = self._prepare(state, batch)
        group = self._group
        if not (group.serialize_programs or group.spans_processes):
            results += starmap(self._compiled, ((state, batch),))
            return
        check_not_in_callback()
        with LAUNCH_LOCK:
            wait_for_previous()
            if group.spans_processes:
                watch = process_watch()
                watch.before_launch(self._name, fingerprint)
                results += starmap(watch.run, ((lambda: self._compiled(state, batch),),))
                return
            results += starmap(self._compiled, ((state, batch),))
            for array in jax.tree.leaves(results[-1])[:1]:
                note_launched(array)

    def _prepare(self, state: Any, batch: Any) -> str:
        """Compiles for batches of this kind before any lock is taken; returns what tells them apart."""
        leaves, structure = jax.tree.flatten(batch)
        key = (structure, tuple((leaf.shape, leaf.dtype, leaf.sharding) for leaf in leaves))
        if key not in self._prepared:
            if not jax_settings.jit_is_disabled():
                self._compiled.lower(state, batch).compile()
            kinds = [
                (array.shape, str(array.dtype), str(array.sharding.spec))
                for array in jax.tree.leaves((state, batch))
            ]
            fingerprint = hashlib.sha256(repr((self._name, kinds)).encode()).hexdigest()
            self._prepared[key] = fingerprint
        return self._prepared[key]


def _compile_step(step: Callable[..., Any], group: ReplicaGroup, *, gives_away: bool) -> Any:
    return jax.jit(
        step,
        donate_argnums=0 if gives_away else (),
        out_shardings=(None, group.replicated),
    )
