"""``GradientTape`` records the operations of a block and differentiates them, as in TensorFlow."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import (
    ContextError,
    InvalidArgumentError,
    ShapeMismatchError,
    VariableError,
)
from stratagem._src.core.thread_state import THIS_THREAD, ThreadState
from stratagem._src.core.types import ArrayLike, Leaf, PyTree, Tensor
from stratagem._src.current_strategy import context
from stratagem._src.execution.conditionals import BranchFrame
from stratagem._src.execution.gradient_frame import GradientFrame
from stratagem._src.execution.replicas.replica_frame import ReplicaFrame
from stratagem._src.jax_compat.recording_trace import (
    RecordingTrace,
    base_of,
    current_trace,
    make_current,
)
from stratagem._src.jax_compat.tape_record import Record, alias_of
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.tensorflow_api.tape_gradients import (
    GradientFunction,
    UnconnectedGradients,
    conjugate,
    is_source,
    jacobian_rows,
    note_gradient_sum,
    note_loss,
    source_gradient,
    table_of,
    target_weights,
)
from stratagem._src.values.array_operators import array_of
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable
from stratagem._src.variables.foreign_variables import is_variable, variable_of
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable
from stratagem._src.variables.variable import Variable

__all__ = [
    "GradientTape",
]

_SECOND_ORDER = (
    "GradientTape cannot differentiate a gradient that it has computed itself, inside its block. For "
    "higher-order derivatives, nest tapes: compute the gradient with an inner tape, in the outer block."
)
_logger = logging.getLogger("stratagem")


@dataclass(frozen=True, slots=True)
class _Read:
    """One read of a source.

    Attributes:
        tangent: The linear variable of the value that was read.
        indices: The rows that were read, if not all.
        part: The linear variable of this replica's shard, whose gradient is the sum over the replicas.
    """

    tangent: Any
    indices: Any = None
    part: Any = None


@dataclass(slots=True)
class _Reads:
    """A variable and its reads. The reference keeps its ``id`` from being reused.

    Attributes:
        variable: The variable.
        reads: Its reads, in order.
        not_seen: Why the tape cannot differentiate some of them.
    """

    variable: Variable
    reads: list[_Read] = field(default_factory=list)
    not_seen: str | None = None


class GradientTape:
    """Records the operations of its block, for gradients with respect to variables and arrays.

    The tape watches trainable variables that the block reads, and arrays passed to ``watch``. Values in
    the block are ordinary arrays. Tapes work in replicas, eager and compiled, in ``function``, and around
    Keras models. Nest tapes for higher-order derivatives.

    In a compiled function a tape costs the same as ``value_and_grad``. Eagerly, each operation in the block
    is slower than without a tape, and a ``function`` that the block calls runs uncompiled.

    Args:
        persistent: Whether ``gradient`` and ``jacobian`` may be called more than once.
        watch_accessed_variables: Whether reading a trainable variable watches it.

    Differs from tf.GradientTape: an operation that returns its operand, such as a ``reshape`` to the same
    shape, makes no new value, so the gradient with respect to the result is the gradient with respect to
    the operand. Eager replicas need their own tapes: open them in the function passed to ``strategy.run``.

    JAX equivalent: ``jax.vjp``.

    >>> import stratagem as tf
    >>> w = tf.Variable(3.0)
    >>> with tf.GradientTape() as tape:
    ...     y = w * w
    >>> float(y), float(tape.gradient(y, w))
    (9.0, 6.0)

    With respect to an array, and second-order:

    >>> x = tf.constant(2.0)
    >>> with tf.GradientTape() as outer:
    ...     outer.watch(x)
    ...     with tf.GradientTape() as inner:
    ...         inner.watch(x)
    ...         y = x**3
    ...     first = inner.gradient(y, x)
    >>> float(first), float(outer.gradient(first, x))
    (12.0, 12.0)
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self._persistent = bool(persistent)
        self._watch_accessed_variables = bool(watch_accessed_variables)
        self._record: Record | None = Record()
        self._variables: dict[int, _Reads] = {}
        self._watched: dict[int, Variable] = {}
        self._trace: RecordingTrace | None = None
        self._thread: ThreadState | None = None
        self._base: Any = None
        self._levels: list[Any] = []
        self._depth = 0

    # --- the block --------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Starts or resumes recording.

        Raises:
            InvalidArgumentError: If the tape is recording already.
            ContextError: If the tape has recorded inside another traced function.
        """
        if self._trace is not None:
            raise InvalidArgumentError(
                "A GradientTape is entered by one block at a time, and this one is recording already. "
                "Create another tape for the inner block."
            )
        trace = current_trace()
        if self._record is None:
            self.reset()
        if self._base is not None and self._base is not base_of(trace):
            raise ContextError(
                "A GradientTape cannot be re-entered inside another traced function (a compiled function, "
                "jax.jit, lax.scan, ...) than before. Call reset() first, or create a tape there."
            )
        assert self._record is not None
        self._base = base_of(trace)
        self._thread = thread = THIS_THREAD.state
        # The traces around the block. Their tracers are constants throughout the block, so reading one of
        # them is a read like any other; see note_read.
        traces = (getattr(frame, "_trace", None) for frame in thread.state_frames)
        self._levels = [self._base, *(level for level in traces if level is not None)]
        self._depth = len(thread.state_frames)
        self._trace = RecordingTrace(self._record, trace)
        thread.before_enter()
        thread.tapes.append(self)
        make_current(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        mine, thread = self._trace, self._thread
        if mine is None or thread is None:
            return
        mine.open = False
        self._trace = None
        if self in thread.tapes:
            thread.tapes.remove(self)
        # Tapes need not be closed in the order in which they were entered.
        trace = current_trace()
        while isinstance(trace, RecordingTrace) and not trace.open:
            trace = trace.parent_trace
        make_current(trace)
        thread.after_exit()

    @contextlib.contextmanager
    def stop_recording(self) -> Iterator[None]:
        """Pauses recording for a block inside the tape's block.

        Raises:
            InvalidArgumentError: If called outside the tape's block.

        >>> import stratagem as tf
        >>> x = tf.Variable(4.0)
        >>> with tf.GradientTape() as tape:
        ...     y = x**2
        ...     with tape.stop_recording():
        ...         scale = 1.0 / y
        ...     z = y * scale
        >>> float(z), float(tape.gradient(z, x))
        (1.0, 0.5)
        """
        record = self._record
        if self._trace is None or record is None:
            raise InvalidArgumentError(
                "stop_recording() needs a recording GradientTape. Call it inside the tape's block."
            )
        record.paused += 1
        try:
            yield
        finally:
            record.paused -= 1

    def reset(self) -> None:
        """Discards the recorded operations. Inside the block, recording continues.

        Raises:
            ContextError: If called inside the block of another tape, or in a function that JAX traces.
        """
        before = self._trace
        if before is not None and current_trace() is not before:
            raise ContextError(
                "GradientTape.reset() cannot be called inside the block of another tape, or in a function "
                "that JAX traces. Call it directly in the tape's own block."
            )
        self._record = Record()
        self._variables, self._watched = {}, {}
        if before is None:
            self._base = None
        else:
            before.open = False
            self._trace = RecordingTrace(self._record, before.parent_trace)
            make_current(self._trace)

    # --- watched sources --------------------------------------------------------------------------

    @property
    def is_recording(self) -> bool:
        """Whether the tape records the operations of this thread."""
        return self._trace is not None and self._record is not None and not self._record.paused

    def watch(self, tensor: PyTree) -> None:
        """Watches ``tensor``: records how later values depend on it.

        Args:
            tensor: An array or a variable, or any structure of these.

        Raises:
            InvalidArgumentError: If it is something else, or if called outside the tape's block.
        """
        for leaf in structures.leaves_of(tensor, is_source):
            if is_variable(leaf):
                variable = variable_of(leaf)
                self._watched[id(variable)] = variable
                continue
            value = array_of(leaf)
            if not isinstance(value, jax.Array):
                raise InvalidArgumentError(
                    f"GradientTape.watch() takes arrays and variables, got {type(leaf).__name__}. "
                    "Convert it with stratagem.constant or jax.numpy.asarray first, and compute with the "
                    "array."
                )
            if self._trace is None or self._record is None:
                raise InvalidArgumentError(
                    "GradientTape.watch() needs a recording tape. Call it inside the tape's block."
                )
            if is_tracer(value) and base_of(current_trace()) is not self._base:
                raise ContextError(
                    "GradientTape.watch() cannot be called in a function that JAX traces separately from "
                    "the tape's block (the body of lax.scan, lax.cond, jax.jit, ...). Open a tape there, "
                    "or watch the function's arguments outside it."
                )
            if self._record.watch(value) is None:
                _logger.warning(
                    "GradientTape watches an array of dtype %s; only floating-point and complex arrays "
                    "have gradients.",
                    value.dtype,
                )

    def watched_variables(self) -> tuple[Any, ...]:
        """Returns the watched variables, in the order in which they were watched."""
        read = {key: entry.variable for key, entry in self._variables.items()}
        return tuple((self._watched | read).values())

    def knows(self, value: Tensor) -> bool:
        """Returns whether the tape has recorded the derivative of ``value``."""
        return self._record is not None and self._record.tangent(value) is not None

    def watches(self, variable: Variable) -> bool:
        """Returns whether the tape records derivatives with respect to ``variable``."""
        if id(variable) in self._watched:
            return True
        if self._watch_accessed_variables and variable.trainable:
            return True
        return any(table_of(watched) is variable for watched in self._watched.values())

    def own(self, value: Tensor) -> Tensor:
        """Returns a new object for the same array, without a record of its derivative."""
        return alias_of(value)

    def note_read(
        self, variable: Variable, value: Tensor, *, indices: ArrayLike = None, shard: Tensor = None
    ) -> None:
        """Records that the block read ``variable``: all of it, or the rows at ``indices``."""
        assert self._record is not None
        entry = self._variables.setdefault(id(variable), _Reads(variable))
        read = value if shard is None else shard
        if is_tracer(read) and not any(read._trace is level for level in self._levels):
            inner = THIS_THREAD.state.state_frames[self._depth :]
            # The tracer belongs to a trace inside the block. In value_and_grad, replicas and branches that
            # is fine: their frame has read the variable in the block and passes the value in as an
            # argument, so the derivative flows through that read. Any other function hides the read from
            # the tape.
            given = (
                (GradientFrame,)
                if variable.program_shard_dim is not None
                or isinstance(variable, BaseRemoteVariable)
                else (GradientFrame, ReplicaFrame, BranchFrame)
            )
            if any(isinstance(f, BranchFrame) and id(variable) in f.written for f in inner):
                entry.not_seen = (
                    "it is read in a branch of tf.cond after the branch has assigned it. Read it before "
                    "the assignment, or after the conditional"
                )
            elif not inner or not all(isinstance(frame, given) for frame in inner):
                entry.not_seen = (
                    "it is read in a function that is traced separately from the tape's block, such as the "
                    "one passed to strategy.run. Open the tape inside that function"
                )
            return
        if _is_made_of_all_replicas(variable):
            entry.not_seen = (
                "it is ON_READ and is read in cross-replica context, where its value combines the values "
                "of all replicas. Open the tape inside the function passed to strategy.run"
            )
            return
        tangent = self._record.watch(value)
        if tangent is not None:
            of_part = None if shard is None else self._record.watch(shard)
            entry.reads.append(_Read(tangent, indices, of_part))

    # --- gradients --------------------------------------------------------------------------------

    def gradient(
        self,
        target: PyTree,
        sources: PyTree,
        output_gradients: PyTree = None,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
    ) -> PyTree:
        """Returns the gradients of ``target`` with respect to ``sources``.

        In a replica, these are the gradients of that replica. Several targets, or a target that is not a
        scalar, are summed.

        Args:
            target: An array, or any structure of arrays.
            sources: An array or a variable, or any structure of these. Arrays must be watched, or
                computed in the block from watched values.
            output_gradients: Weights of the targets in the sum, with the structure and shapes of
                ``target``; default: ones.
            unconnected_gradients: What to return for sources that no target depends on: ``None`` or zeros.

        Returns:
            The gradients in the structure of ``sources``. If the block reads only some rows of a variable
            on parameter servers, its gradient is an ``IndexedSlices`` of those rows.

        Raises:
            ContextError: If the tape is not persistent and has computed a gradient already.
        """
        unconnected = UnconnectedGradients(unconnected_gradients)
        targets, _ = structures.flatten(target, is_source)
        weights = target_weights(targets, output_gradients)
        leaves, structure = structures.flatten(sources, is_source)
        found = self._differentiate(
            targets, leaves, unconnected, lambda gradients: gradients(weights)
        )
        if len(targets) == 1 and output_gradients is None:
            note_loss(array_of(targets[0]), found)
        return jax.tree.unflatten(structure, found)

    def jacobian(
        self,
        target: ArrayLike,
        sources: PyTree,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> PyTree:
        """Returns the derivatives of each element of ``target`` with respect to ``sources``.

        Args:
            target: An array.
            sources: As for ``gradient``.
            unconnected_gradients: As for ``gradient``.
            parallel_iterations: Ignored.
            experimental_use_pfor: Whether to compute all rows at once instead of one after the other.

        Returns:
            Arrays of shape ``target.shape + source.shape``, in the structure of ``sources``.

        >>> import stratagem as tf
        >>> x = tf.Variable([1.0, 2.0])
        >>> with tf.GradientTape() as tape:
        ...     y = x**2
        >>> tape.jacobian(y, x).tolist()
        [[2.0, 0.0], [0.0, 4.0]]
        """
        unconnected = UnconnectedGradients(unconnected_gradients)
        value = array_of(target)
        if not isinstance(value, jax.Array):
            raise InvalidArgumentError(
                f"GradientTape.jacobian() takes one array as target, got {type(target).__name__}."
            )
        leaves, structure = structures.flatten(sources, is_source)
        basis = jnp.eye(value.size, dtype=value.dtype).reshape((value.size, *value.shape))
        rows = self._differentiate(
            [target],
            leaves,
            unconnected,
            lambda gradients: jacobian_rows(gradients, basis, at_once=experimental_use_pfor),
        )
        shaped = [None if r is None else r.reshape((*value.shape, *r.shape[1:])) for r in rows]
        return jax.tree.unflatten(structure, shaped)

    def batch_jacobian(
        self,
        target: ArrayLike,
        source: ArrayLike,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Tensor | None:
        """Returns the derivatives of each row of ``target`` with respect to the same row of ``source``.

        Row ``i`` of the target must not depend on any other row of the source.

        Args:
            target: An array of rank 2 or more.
            source: An array of rank 2 or more, with the same number of rows.
            unconnected_gradients: As for ``gradient``.
            parallel_iterations: Ignored.
            experimental_use_pfor: As for ``jacobian``.

        Returns:
            An array of shape ``target.shape + source.shape[1:]``.

        >>> import stratagem as tf
        >>> x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = x * x
        >>> tape.batch_jacobian(y, x).tolist()
        [[[2.0, 0.0], [0.0, 4.0]], [[6.0, 0.0], [0.0, 8.0]]]
        """
        unconnected = UnconnectedGradients(unconnected_gradients)
        value, of = array_of(target), array_of(source)
        shapes = [tuple(np.shape(value)), tuple(np.shape(of))]
        if any(len(shape) < 2 for shape in shapes) or shapes[0][0] != shapes[1][0]:
            raise ShapeMismatchError(
                "GradientTape.batch_jacobian() takes a target and a source of rank 2 or more with the "
                f"same number of rows, got shapes {shapes[0]} and {shapes[1]}."
            )
        size = int(np.prod(shapes[0][1:]))
        basis = jnp.eye(size, dtype=value.dtype).reshape((size, 1, *shapes[0][1:]))
        basis = jnp.broadcast_to(basis, (size, *shapes[0]))
        [rows] = self._differentiate(
            [target],
            [source],
            unconnected,
            lambda gradients: jacobian_rows(gradients, basis, at_once=experimental_use_pfor),
        )
        if rows is None:
            return None
        return jnp.moveaxis(rows, 0, 1).reshape((*shapes[0], *shapes[1][1:]))

    # --- arrays and tangents ------------------------------------------------------------------------

    def _differentiate(
        self,
        targets: Sequence[Any],
        sources: Sequence[Any],
        unconnected: UnconnectedGradients,
        compute: Callable[[GradientFunction], list[Any]],
    ) -> list[PyTree]:
        """Returns the result of ``compute``, one value for each source.

        Args:
            targets: The values to differentiate.
            sources: The variables and arrays to differentiate with respect to.
            unconnected: What to return where there is no gradient.
            compute: A function of ``gradients``, which maps weights of the targets to one gradient per
                source.
        """
        record = self._record
        if record is None:
            raise ContextError(
                "A GradientTape that is not persistent computes gradients or a Jacobian once, and this one "
                "has already. Use GradientTape(persistent=True), or compute everything in one call."
            )
        tangents = [self._target(record, target) for target in targets]
        wanted = [self._source(record, source) for source in sources]
        # What is read of a sharded variable is read of its shards, which may be sources too.
        tables = map(table_of, sources)
        of_tables = [[] if table is None else self._source(record, table) for table in tables]
        all_reads = [read for reads in [*wanted, *of_tables] for read in reads]
        parts = [read.part for read in all_reads if read.part is not None]
        unique = list({id(t): t for t in [*(read.tangent for read in all_reads), *parts]}.values())
        if not self._persistent:
            self._close()
            self._record = None
            for entry in self._variables.values():
                entry.reads = []

        def gradients(weights: Sequence[Any]) -> list[PyTree]:
            pairs = [
                (tangent, conjugate(weight))
                for tangent, weight in zip(tangents, weights, strict=True)
                if tangent is not None
            ]
            found = record.pull_back([t for t, _ in pairs], [w for _, w in pairs], unique)
            by_tangent = {id(t): conjugate(ct) for t, ct in zip(unique, found, strict=True)}

            def of_reads(reads: Sequence[_Read]) -> list[tuple[Any, Any]]:
                return [(by_tangent[id(read.tangent)], read.indices) for read in reads]

            results = [
                source_gradient(source, of_reads(reads), unconnected, of_reads(of_table))
                for source, reads, of_table in zip(sources, wanted, of_tables, strict=True)
            ]
            for result, reads in zip(results, wanted, strict=True):
                note_gradient_sum(result, [by_tangent.get(id(read.part)) for read in reads])
            return results

        # Gradients are computed with values around this record, which therefore cannot differentiate them:
        # it must not record them, and refuses them below if they are used in the block.
        record.paused += 1
        try:
            found = compute(gradients)
        finally:
            record.paused -= 1
        if not self.is_recording:
            return found
        return [jax.tree.map(lambda x: record.refuse(x, _SECOND_ORDER), each) for each in found]

    def _target(self, record: Record, leaf: Leaf) -> Tensor | None:
        if is_variable(leaf):
            entry = self._variables.get(id(variable_of(leaf)))
            return entry.reads[-1].tangent if entry is not None and entry.reads else None
        if isinstance(leaf, PerReplica):
            raise InvalidArgumentError(
                "GradientTape differentiates the value of one replica, got a PerReplica as target. Open "
                "the tape and take the gradient inside the function passed to strategy.run."
            )
        return record.tangent(array_of(leaf))

    def _source(self, record: Record, leaf: Leaf) -> list[_Read]:
        if is_variable(leaf):
            variable = variable_of(leaf)
            entry = self._variables.get(id(variable))
            if entry is not None and entry.not_seen is not None:
                raise VariableError(
                    f"GradientTape cannot differentiate with respect to variable {variable.name!r}: "
                    f"{entry.not_seen}."
                )
            return [] if entry is None else list(entry.reads)
        value = array_of(leaf)
        if not isinstance(value, jax.Array):
            raise InvalidArgumentError(
                "GradientTape differentiates with respect to arrays and variables, got "
                f"{type(leaf).__name__} as source."
            )
        tangent = record.tangent(value)
        return [] if tangent is None else [_Read(tangent)]


def _is_made_of_all_replicas(variable: Variable) -> bool:
    if not isinstance(variable, SyncOnReadVariable) or variable.group.size == 1:
        return False
    return context.get_replica_context() is None
