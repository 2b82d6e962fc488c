"""``StepProgram``: compiles a Keras step for all replicas, and launches it."""

from __future__ import annotations

import functools
import gc
import hashlib
from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Any, NamedTuple

import jax
from jax.extend.core import Var

from stratagem._src.collectives.collective_jit import jit_with_collectives
from stratagem._src.core.types import Jaxpr, PyTree, PyTreeDef, Tensor
from stratagem._src.execution.callbacks import guard_callbacks, wait_for_callbacks
from stratagem._src.execution.lowering import lower_jitted
from stratagem._src.execution.passes import rewrite_for_one_device, rewrite_for_platform
from stratagem._src.integrations.keras.model_state import Attempt
from stratagem._src.jax_compat.device_arrays import copy_without_program
from stratagem._src.mesh.dispatch_queue import QUEUE, dispatch
from stratagem._src.mesh.logical_devices import PartitionedGroup, tracing_whole_batch
from stratagem._src.mesh.process_monitor import ProgramIdentity, ProgramLine, process_monitor
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.partitioner.laid_out_program import lay_out_program
from stratagem._src.partitioner.partitioned_program import partition
from stratagem._src.process.garbage_collection import GC_RUNS_ON_ALLOCATION
from stratagem._src.telemetry.measurement.recorder import activity
from stratagem._src.variables.locking import STORAGE_LOCK

__all__ = ["StepProgram", "keeps_state"]


class _Prepared(NamedTuple):
    """The step, compiled for batches of one signature.

    Args:
        program: The compiled program.
        fingerprint: A hash that is equal for the same program in all processes.
        arrays: The shapes and dtypes of the arguments, from which the fingerprint is computed.
        errors: Receives exceptions of its host callbacks; ``None`` if it has no callbacks.
    """

    program: _Jitted
    fingerprint: str
    arrays: list[ProgramLine]
    errors: list[BaseException] | None


class StepProgram:
    """A compiled ``step(state, batch)`` that returns ``(result, new_state)``.

    The step sees the global batch, as on one device; the partitioner divides the computation.

    Args:
        step: The pure function of Keras.
        group: The replicas.
        name: A description, the same in all processes.
        donate: Whether to donate the state to the program, which needs less memory. The state is not
            donated if the program may fail while it runs.
    """

    def __init__(
        self, step: Callable[..., Any], group: ReplicaGroup, name: str, *, donate: bool
    ) -> None:
        self._step = step
        self._group = group
        self._name = name
        self._donate = donate and not keeps_state(group)
        self._prepared: dict[Any, _Prepared] = {}

    def run(self, state: PyTree, batch: PyTree, attempt: Attempt) -> None:
        """Runs the step and stores its results in ``attempt``, even if it is interrupted."""
        prepared = self._prepare(state, batch)
        attempt.read = lambda computed: prepared.program.result(computed, state, batch)
        attempt.has_callbacks = prepared.errors is not None
        finish = functools.partial(self._check_callbacks, prepared, attempt)
        if self._group.spans_processes:
            # It compiles here, on accelerators: see `MultiProcessProgram.run_arrays`.
            launch = functools.partial(prepared.program.jitted, state, batch)
            identity = ProgramIdentity(self._name, prepared.fingerprint, lambda: prepared.arrays)

            def keep(results: list[Any]) -> None:
                attempt.finished.append(results)
                finish()

            dispatch(launch, self._group, identity=identity, finish=keep)
            return

        def launch_here() -> None:
            # JAX dispatches the first run of a program in Python code, where a signal handler would read
            # donated arrays, and an interrupt would lose the state. So it gets copies.
            given = state if prepared.program.has_run else jax.tree.map(copy_without_program, state)
            launched = starmap(prepared.program.jitted, ((given, batch),))
            with STORAGE_LOCK:  # other threads read the state under this lock
                gc_was_enabled = GC_RUNS_ON_ALLOCATION and gc.isenabled()
                try:
                    if gc_was_enabled:
                        gc.disable()
                    # starmap calls the program and extends the list in C, so that no interrupt or handler
                    # can arrive between the end of the program, which has donated the state, and the
                    # assignment.
                    attempt.finished += launched
                finally:
                    if gc_was_enabled:
                        gc.enable()
            prepared.program.has_run = True
            if self._group.serialize_programs:
                for array in attempt.finished[0][:1]:
                    QUEUE.in_flight = array

        dispatch(launch_here, self._group, finish=lambda _: finish())

    def _check_callbacks(self, prepared: _Prepared, attempt: Attempt) -> None:
        """Waits for host callbacks; discards the results if one failed, here or in another process."""
        if prepared.errors is None:
            return
        name = self._name if self._group.spans_processes else None
        try:
            wait_for_callbacks(prepared.errors, attempt.finished[-1], name)
        except Exception:
            attempt.finished.clear()
            raise

    def _prepare(self, state: PyTree, batch: PyTree) -> _Prepared:
        leaves, structure = jax.tree.flatten(batch)
        kinds = tuple((a.shape, a.dtype, a.sharding) for a in leaves)
        # The state is part of the key, because the model may have got another layer.
        key = (structure, kinds, tuple((a.shape, a.dtype) for part in state for a in part))
        prepared = self._prepared.get(key)
        if prepared is None:
            with activity("compiling"):
                prepared = self._prepared[key] = self._compile(state, batch)
        return prepared

    def _compile(self, state: PyTree, batch: PyTree) -> _Prepared:
        """Compiles the step. The caller holds no lock."""
        examples = jax.tree.map(_example, (state, batch))
        group = self._group
        split = [array.sharding == group.sharded for array in jax.tree.leaves(batch)]
        laid_out = group if isinstance(group, PartitionedGroup) and group.rules else None
        step = _with_layouts(self._step, split, laid_out) if laid_out else self._step
        traced, shapes = jax.make_jaxpr(step, return_shape=True)(*examples)
        errors: list[BaseException] = []
        guarded, has_callbacks = guard_callbacks(traced.jaxpr, errors)
        guarded = rewrite_for_platform(guarded, self._group.platform)
        states, batches = jax.tree.leaves(state), jax.tree.leaves(batch)
        guarded_program = traced.replace(jaxpr=guarded)
        partitioned = (
            lay_out_program(guarded_program, states, laid_out)
            if laid_out
            else partition(
                guarded_program,
                [*[False] * len(states), *split],
                group,
                lambda jaxpr: rewrite_for_one_device(jaxpr, group.platform),
            )
        )

        donates = self._donate and not has_callbacks
        program = _Jitted(
            partitioned, guarded, jax.tree.structure(shapes), self._group, donates=donates
        )
        if not group.spans_processes or process_monitor().waits_for_programs:
            program.compile(state, batch)
        kinds = [(array.shape, str(array.dtype)) for array in (*states, *batches)]
        kinds.append((tuple(split), "split"))
        fingerprint = hashlib.sha256(repr((self._name, kinds)).encode()).hexdigest()
        arrays = [ProgramLine(line, line) for line in map(str, kinds)]
        return _Prepared(program, fingerprint, arrays, errors if has_callbacks else None)


def _with_layouts(
    step: Callable[..., Any], split: Sequence[bool], group: PartitionedGroup
) -> Callable[..., Any]:
    """Returns a step that is traced with layouts, those that sharding rules give a batch to begin with."""

    def laid_out(state: PyTree, batch: PyTree) -> Any:
        leaves, structure = jax.tree.flatten(batch)
        with tracing_whole_batch(group):
            leaves = [
                group.constrain_batch(leaf) if is_split else leaf
                for leaf, is_split in zip(leaves, split, strict=True)
            ]
            return step(state, jax.tree.unflatten(structure, leaves))

    return laid_out


class _Jitted:
    """A compiled function of a state and a batch.

    Args:
        compute: Takes the arrays of state and batch, and returns those of the results.
        jaxpr: The jaxpr of ``compute``.
        structure: The tree structure of the results.
        group: The replicas.
        donates: Whether the state is donated.

    Attributes:
        has_run: Whether a run no longer needs copies of the state.
    """

    def __init__(
        self,
        compute: Callable[..., list[Any]],
        jaxpr: Jaxpr,
        structure: PyTreeDef,
        group: ReplicaGroup,
        *,
        donates: bool,
    ) -> None:
        inputs = {variable: i for i, variable in enumerate(jaxpr.invars)}
        # Outputs that are inputs, such as weights in an evaluation step, are not computed: XLA would copy
        # them. `result` takes them from the arguments.
        returned = [
            inputs.get(atom) if isinstance(atom, Var) and not donates else None
            for atom in jaxpr.outvars
        ]

        def step(state: PyTree, batch: PyTree) -> list[Any]:
            results = compute(*jax.tree.leaves((state, batch)))
            return [result for result, kept in zip(results, returned, strict=True) if kept is None]

        self.jitted = jit_with_collectives(step, group, donate_argnums=(0,) if donates else ())
        self.has_run = not donates
        self._group = group
        self._returned = returned
        self._structure = structure

    def compile(self, state: PyTree, batch: PyTree) -> None:
        """Compiles the function for arguments of these types."""
        lower_jitted(self.jitted, (state, batch), self._group).compile()

    def result(self, computed: list[Any], state: PyTree, batch: PyTree) -> Any:
        """Returns the results, from the computed arrays and the arguments."""
        remaining = iter(computed)
        given = jax.tree.leaves((state, batch))
        return self._structure.unflatten(
            [next(remaining) if kept is None else given[kept] for kept in self._returned]
        )


def keeps_state(group: ReplicaGroup) -> bool:
    """Returns whether state is never donated, because another process may be lost while the step runs."""
    return group.spans_processes and process_monitor().waits_for_programs


def _example(array: Tensor) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of an array, without its sharding."""
    return jax.ShapeDtypeStruct(
        array.shape, array.dtype, weak_type=getattr(array, "weak_type", False)
    )
