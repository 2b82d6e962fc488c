"""One step of Keras as a program over the replicas, and how it is launched."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import starmap
from typing import Any, NamedTuple

import jax
from jax.extend.core import Var

from stratagem._src.collectives.exchanging_jit import jit_with_exchanges
from stratagem._src.execution.callbacks import guard_callbacks, wait_for_callbacks
from stratagem._src.integrations.keras.model_state import Attempt
from stratagem._src.mesh.dispatch_queue import (
    QUEUE,
    ProgramLine,
    check_not_in_callback,
    process_watch,
    run_in_turn,
)
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.partitioner.divided_program import divide
from stratagem._src.variables.atomicity import STORAGE_LOCK

__all__ = ["StepProgram", "keeps_state"]


class _Prepared(NamedTuple):
    """The step for batches of one kind.

    Args:
        program: It, compiled.
        fingerprint: Equal for the same program in all processes.
        arrays: The shapes and types of what it takes, which the fingerprint follows from.
        errors: Where its host callbacks put their exceptions; ``None`` if there are none.
    """

    program: _Jitted
    fingerprint: str
    arrays: list[ProgramLine]
    errors: list[BaseException] | None


class StepProgram:
    """A compiled ``step(state, batch)`` that returns ``(result, new_state)``.

    The step sees the batch of all replicas, as on one device; what it computes is divided.

    Args:
        step: The function, as of Keras: pure.
        group: The replicas.
        name: What it does; the same in all processes.
        gives_away: Whether the state is given to the program, which needs less memory. It is kept
            anyway if the program may fail while it runs.
    """

    def __init__(
        self, step: Callable[..., Any], group: ReplicaGroup, name: str, *, gives_away: bool
    ) -> None:
        self._step = step
        self._group = group
        self._name = name
        self._gives_away = gives_away and not keeps_state(group)
        self._prepared: dict[Any, _Prepared] = {}

    def run(self, state: Any, batch: Any, attempt: Attempt) -> None:
        """Runs the step and notes in ``attempt`` what it returns, also if it is interrupted."""
        prepared = self._prepare(state, batch)
        attempt.read = lambda computed: prepared.program.result(computed, state, batch)
        if self._group.serialize_programs or self._group.spans_processes:
            check_not_in_callback()
            run_in_turn(lambda: self._launch(prepared, state, batch, attempt.finished))
        else:
            with STORAGE_LOCK:  # other threads read the state under it
                attempt.finished += starmap(prepared.program.jitted, ((state, batch),))
        if prepared.errors is not None:
            joint = self._name if self._group.spans_processes else None
            try:
                wait_for_callbacks(prepared.errors, attempt.finished[-1], joint)
            except Exception:
                attempt.finished.clear()
                raise

    def _launch(
        self, prepared: _Prepared, state: Any, batch: Any, finished: list[list[Any]]
    ) -> None:
        jitted = prepared.program.jitted
        if self._group.spans_processes:
            watch = process_watch()
            watch.before_launch(self._name, prepared.fingerprint, lambda: prepared.arrays)
            finished += starmap(watch.run, ((lambda: jitted(state, batch),),))
            return
        with STORAGE_LOCK:
            finished += starmap(jitted, ((state, batch),))
        for array in finished[0][:1]:
            QUEUE.in_flight = array

    def _prepare(self, state: Any, batch: Any) -> _Prepared:
        leaves, structure = jax.tree.flatten(batch)
        kinds = tuple((a.shape, a.dtype, a.sharding) for a in leaves)
        # The state as well: the model may have got another layer.
        key = (structure, kinds, tuple((a.shape, a.dtype) for part in state for a in part))
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepared[key] = self._compile(state, batch)
        return prepared

    def _compile(self, state: Any, batch: Any) -> _Prepared:
        """Compiles, before any lock is taken."""
        examples = jax.tree.map(_example, (state, batch))
        traced, shapes = jax.make_jaxpr(self._step, return_shape=True)(*examples)
        errors: list[BaseException] = []
        guarded, has_callbacks = guard_callbacks(traced.jaxpr, errors)
        states, batches = jax.tree.leaves(state), jax.tree.leaves(batch)
        split = [array.sharding == self._group.sharded for array in batches]
        divided = divide(
            traced.replace(jaxpr=guarded), [*[False] * len(states), *split], self._group
        )

        donates = self._gives_away and not has_callbacks
        program = _Jitted(
            divided, guarded, jax.tree.structure(shapes), self._group, donates=donates
        )
        program.compile(state, batch)
        kinds = [(array.shape, str(array.dtype)) for array in (*states, *batches)]
        kinds.append((tuple(split), "split"))
        fingerprint = hashlib.sha256(repr((self._name, kinds)).encode()).hexdigest()
        arrays = [ProgramLine(line, line) for line in map(str, kinds)]
        return _Prepared(program, fingerprint, arrays, errors if has_callbacks else None)


class _Jitted:
    """A compiled function of a state and a batch.

    Args:
        compute: Takes their arrays, and returns those of the results.
        jaxpr: What it computes.
        structure: Of the results.
        group: The replicas.
        donates: Whether the state is given away.
    """

    def __init__(
        self,
        compute: Callable[..., list[Any]],
        jaxpr: Any,
        structure: Any,
        group: ReplicaGroup,
        *,
        donates: bool,
    ) -> None:
        inputs = {variable: i for i, variable in enumerate(jaxpr.invars)}
        # What comes out as it went in, such as weights in a step of evaluation, need not be copied.
        returned = [
            inputs.get(atom) if isinstance(atom, Var) and not donates else None
            for atom in jaxpr.outvars
        ]

        def step(state: Any, batch: Any) -> list[Any]:
            results = compute(*jax.tree.leaves((state, batch)))
            return [result for result, kept in zip(results, returned, strict=True) if kept is None]

        self.jitted = jit_with_exchanges(step, group, donate_argnums=(0,) if donates else ())
        self._returned = returned
        self._structure = structure

    def compile(self, state: Any, batch: Any) -> None:
        """Compiles for arguments like these."""
        self.jitted.lower(state, batch).compile()

    def result(self, computed: list[Any], state: Any, batch: Any) -> Any:
        """Returns the results, given what was computed."""
        remaining = iter(computed)
        given = jax.tree.leaves((state, batch))
        return self._structure.unflatten(
            [next(remaining) if kept is None else given[kept] for kept in self._returned]
        )


def keeps_state(group: ReplicaGroup) -> bool:
    """Returns whether a program never gets its state for good: another process may be gone meanwhile."""
    return group.spans_processes and process_watch().waits_for_programs


def _example(array: Any) -> jax.ShapeDtypeStruct:
    """Returns what an array is, but not where it lies."""
    return jax.ShapeDtypeStruct(
        array.shape, array.dtype, weak_type=getattr(array, "weak_type", False)
    )
