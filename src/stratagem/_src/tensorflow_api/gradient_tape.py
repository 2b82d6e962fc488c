"""``GradientTape``: gradients of what a block has computed, as in TensorFlow."""

from __future__ import annotations

import contextlib
import enum
import functools
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
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.thread_state import THIS_THREAD, ThreadState
from stratagem._src.core.types import ArrayLike, Leaf, PyTree, Tensor
from stratagem._src.current_strategy import context
from stratagem._src.execution.conditionals import BranchFrame
from stratagem._src.execution.tracing_frames import GradientFrame, ReplicaFrame
from stratagem._src.jax_compat.recording_trace import (
    Record,
    RecordingTrace,
    alias_of,
    base_of,
    current_trace,
    make_current,
)
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.values.array_operators import array_of
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables import frames
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable
from stratagem._src.variables.foreign_variables import is_variable, variable_of
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable
from stratagem._src.variables.variable import Variable

__all__ = ["GradientTape", "UnconnectedGradients"]

_Gradients = Callable[[Sequence[Any]], list[Any]]
_SECOND_ORDER = (
    "GradientTape cannot differentiate a gradient that it has computed itself, inside its block. For "
    "derivatives of higher order nest tapes: compute the gradient by an inner tape, in the outer block."
)
_logger = logging.getLogger("stratagem")


class UnconnectedGradients(enum.Enum):
    """What ``GradientTape.gradient`` returns for sources that the target does not depend on.

    >>> UnconnectedGradients("zero")
    <UnconnectedGradients.ZERO: 'zero'>
    """

    NONE = "none"
    ZERO = "zero"


@dataclass(frozen=True, slots=True)
class _Read:
    """One read of a source.

    Attributes:
        tangent: What stands for its derivative.
        indices: Which rows were read, if not all.
        part: What stands for the derivative of this replica's part, whose gradient is the replicas' sum.
    """

    tangent: Any
    indices: Any = None
    part: Any = None


@dataclass(slots=True)
class _Reads:
    """A variable, kept alive so that its identity stays its own, and its reads.

    Attributes:
        not_seen: Why the tape cannot tell how values depend on some of them.
    """

    variable: Variable
    reads: list[_Read] = field(default_factory=list)
    not_seen: str | None = None


class GradientTape:
    """Records what its block computes, for gradients with respect to variables and arrays.

    Trainable variables that the block reads are watched; arrays are if ``watch`` is told. What the block
    computes are ordinary arrays, inside and afterwards. It works in replicas, eager and compiled, in
    ``function``, and around Keras models; tapes can be nested for derivatives of higher order.

    In a compiled function a tape costs what ``value_and_grad`` costs. Eagerly, each operation in the block
    takes longer than without a tape, and a ``function`` that is called in the block runs as it is written,
    not compiled.

    Args:
        persistent: Whether ``gradient`` and ``jacobian`` may be called more than once.
        watch_accessed_variables: Whether trainable variables are watched when they are read.

    Differs from tf.GradientTape: an operation that returns its operand itself, as a ``reshape`` to the same
    shape, makes no value of its own, so that the gradient with respect to the result is that with respect
    to the operand. Replicas that run eagerly need tapes of their own: open them in the function given to
    ``strategy.run``.

    JAX equivalent: ``jax.vjp``.

    >>> import stratagem as tf
    >>> w = tf.Variable(3.0)
    >>> with tf.GradientTape() as tape:
    ...     y = w * w
    >>> float(y), float(tape.gradient(y, w))
    (9.0, 6.0)

    With respect to an array, and of second order:

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
        """Begins to record, or continues to.

        Raises:
            InvalidArgumentError: If it records already.
            ContextError: If it has recorded inside another function that is traced.
        """
        if self._trace is not None:
            raise InvalidArgumentError(
                "A GradientTape is entered by one block at a time, and this one is recording already. "
                "Make another tape for the inner block."
            )
        trace = current_trace()
        if self._record is None:
            self.reset()
        if self._base is not None and self._base is not base_of(trace):
            raise ContextError(
                "A GradientTape is entered again inside another function that is traced (a compiled "
                "function, jax.jit, lax.scan, ...) than before. Call reset() first, or make a tape there."
            )
        assert self._record is not None
        self._base = base_of(trace)
        self._thread = thread = THIS_THREAD.state
        # The traces around the block: what is computed in them is the same throughout the block.
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
        # Tapes need not be left in the order in which they were entered.
        trace = current_trace()
        while isinstance(trace, RecordingTrace) and not trace.open:
            trace = trace.parent_trace
        make_current(trace)
        thread.after_exit()

    @contextlib.contextmanager
    def stop_recording(self) -> Iterator[None]:
        """Records nothing in a block inside its own.

        Raises:
            InvalidArgumentError: Outside of the tape's block.

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
                "stop_recording() needs a GradientTape that records. Call it inside the tape's block."
            )
        record.paused += 1
        try:
            yield
        finally:
            record.paused -= 1

    def reset(self) -> None:
        """Forgets what was recorded; inside the block it goes on recording.

        Raises:
            ContextError: Inside the block of another tape, or in a function that JAX traces.
        """
        before = self._trace
        if before is not None and current_trace() is not before:
            raise ContextError(
                "GradientTape.reset() is called inside the block of another tape, or in a function that "
                "JAX traces. Call it directly in the block of its own tape."
            )
        self._record = Record()
        self._variables, self._watched = {}, {}
        if before is None:
            self._base = None
        else:
            before.open = False
            self._trace = RecordingTrace(self._record, before.parent_trace)
            make_current(self._trace)

    # --- what is watched --------------------------------------------------------------------------

    @property
    def is_recording(self) -> bool:
        """Whether it records what this thread computes."""
        return self._trace is not None and self._record is not None and not self._record.paused

    def watch(self, tensor: PyTree) -> None:
        """Records how values depend on ``tensor`` from here on.

        Args:
            tensor: An array or a variable, or any structure of these.

        Raises:
            InvalidArgumentError: If it is something else, or outside of the tape's block.
        """
        for leaf in structures.leaves_of(tensor, _is_source):
            if is_variable(leaf):
                variable = variable_of(leaf)
                self._watched[id(variable)] = variable
                continue
            value = array_of(leaf)
            if not isinstance(value, jax.Array):
                raise InvalidArgumentError(
                    f"GradientTape.watch() takes arrays and variables, got {type(leaf).__name__}. Make an "
                    "array of it first, by stratagem.constant or jax.numpy.asarray, and compute with that."
                )
            if self._trace is None or self._record is None:
                raise InvalidArgumentError(
                    "GradientTape.watch() needs a tape that records. Call it inside the tape's block."
                )
            if is_tracer(value) and base_of(current_trace()) is not self._base:
                raise ContextError(
                    "GradientTape.watch() is called in a function that JAX traces apart from the tape's "
                    "block (the body of lax.scan, lax.cond, jax.jit, ...). Open a tape there, or watch "
                    "outside of it what the function is given."
                )
            if self._record.watch(value) is None:
                _logger.warning(
                    "GradientTape watches an array of dtype %s; only floating-point and complex ones "
                    "have gradients.",
                    value.dtype,
                )

    def watched_variables(self) -> tuple[Any, ...]:
        """Returns the variables that are watched, in the order in which they were."""
        read = {key: entry.variable for key, entry in self._variables.items()}
        return tuple((self._watched | read).values())

    def knows(self, value: Tensor) -> bool:
        """Returns whether the derivative of ``value`` is recorded."""
        return self._record is not None and self._record.tangent(value) is not None

    def watches(self, variable: Variable) -> bool:
        """Returns whether derivatives with respect to ``variable`` are recorded."""
        if id(variable) in self._watched:
            return True
        return self._watch_accessed_variables and variable.trainable

    def own(self, value: Tensor) -> Tensor:
        """Returns another object for the same array, of which nothing is recorded."""
        return alias_of(value)

    def note_read(
        self, variable: Variable, value: Tensor, *, indices: ArrayLike = None, part: Tensor = None
    ) -> None:
        """Notes that ``variable`` was read: all of it, or rows."""
        assert self._record is not None
        entry = self._variables.setdefault(id(variable), _Reads(variable))
        read = value if part is None else part
        if is_tracer(read) and not any(read._trace is level for level in self._levels):
            inner = THIS_THREAD.state.state_frames[self._depth :]
            # What value_and_grad differentiates, and what replicas and branches are given, was read before:
            # by them.
            given = (
                (GradientFrame,)
                if variable.program_shard_dim is not None
                or isinstance(variable, BaseRemoteVariable)
                else (GradientFrame, ReplicaFrame, BranchFrame)
            )
            if any(isinstance(f, BranchFrame) and id(variable) in f.written for f in inner):
                entry.not_seen = (
                    "it is read in a branch of tf.cond after the branch has assigned it. Read it before, "
                    "or after the conditional"
                )
            elif not inner or not all(isinstance(frame, given) for frame in inner):
                entry.not_seen = (
                    "it is read in a function that is traced apart from the tape's block, as the one given "
                    "to strategy.run is. Open the tape inside that function"
                )
            return
        if _is_made_of_all_replicas(variable):
            entry.not_seen = (
                "it is ON_READ and is read in cross-replica context, where its value is made of the values "
                "of all replicas. Open the tape inside the function given to strategy.run"
            )
            return
        tangent = self._record.watch(value)
        if tangent is not None:
            of_part = None if part is None else self._record.watch(part)
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

        In a replica they are those of the replica. Several targets, and a target that is not a scalar,
        count as their sum.

        Args:
            target: An array, or any structure of arrays.
            sources: An array or a variable, or any structure of these. Arrays must have been watched, or
                be computed in the block from what is watched.
            output_gradients: Weights of the targets in the sum, in the structure of ``target`` and of the
                same shapes; default ones.
            unconnected_gradients: What to return for sources that no target depends on: ``None`` or zeros.

        Returns:
            The gradients in the structure of ``sources``. Of a variable on parameter servers of which
            the block reads only rows it is an ``IndexedSlices`` of those rows.

        Raises:
            ContextError: If the tape is not persistent and a gradient was computed already.
        """
        unconnected = UnconnectedGradients(unconnected_gradients)
        targets, _ = structures.flatten(target, _is_source)
        weights = _weights(targets, output_gradients)
        leaves, structure = structures.flatten(sources, _is_source)
        found = self._differentiate(
            targets, leaves, unconnected, lambda gradients: gradients(weights)
        )
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
            parallel_iterations: Without effect.
            experimental_use_pfor: Whether all rows are computed at once; else one after the other.

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
        leaves, structure = structures.flatten(sources, _is_source)
        basis = jnp.eye(value.size, dtype=value.dtype).reshape((value.size, *value.shape))
        rows = self._differentiate(
            [target],
            leaves,
            unconnected,
            lambda gradients: _rows(gradients, basis, at_once=experimental_use_pfor),
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

        Row ``i`` of the target must depend on no other row of the source.

        Args:
            target: An array of rank 2 or more.
            source: An array of rank 2 or more, with as many rows.
            unconnected_gradients: As for ``gradient``.
            parallel_iterations: Without effect.
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
            lambda gradients: _rows(gradients, basis, at_once=experimental_use_pfor),
        )
        if rows is None:
            return None
        return jnp.moveaxis(rows, 0, 1).reshape((*shapes[0], *shapes[1][1:]))

    # --- between arrays and the record --------------------------------------------------------------

    def _differentiate(
        self,
        targets: Sequence[Any],
        sources: Sequence[Any],
        unconnected: UnconnectedGradients,
        compute: Callable[[_Gradients], list[Any]],
    ) -> list[PyTree]:
        """Returns what ``compute`` makes of the gradients with respect to each source.

        Args:
            targets: What is differentiated.
            sources: With respect to what.
            unconnected: What stands for no gradient.
            compute: Given what returns the gradients for weights of the targets.
        """
        record = self._record
        if record is None:
            raise ContextError(
                "A GradientTape that is not persistent computes one set of gradients, or one Jacobian, "
                "and this one has. Make it by GradientTape(persistent=True), or compute all in one call."
            )
        tangents = [self._target(record, target) for target in targets]
        wanted = [self._source(record, source) for source in sources]
        all_reads = [read for reads in wanted for read in reads]
        parts = [read.part for read in all_reads if read.part is not None]
        unique = list({id(t): t for t in [*(read.tangent for read in all_reads), *parts]}.values())
        if not self._persistent:
            self._close()
            self._record = None
            for entry in self._variables.values():
                entry.reads = []

        def gradients(weights: Sequence[Any]) -> list[PyTree]:
            pairs = [
                (tangent, _conjugate(weight))
                for tangent, weight in zip(tangents, weights, strict=True)
                if tangent is not None
            ]
            found = record.pull_back([t for t, _ in pairs], [w for _, w in pairs], unique)
            by_tangent = {id(t): _conjugate(ct) for t, ct in zip(unique, found, strict=True)}
            results = [
                _gradient(
                    source,
                    [(by_tangent[id(read.tangent)], read.indices) for read in reads],
                    unconnected,
                )
                for source, reads in zip(sources, wanted, strict=True)
            ]
            for result, reads in zip(results, wanted, strict=True):
                _note_sum(result, [by_tangent.get(id(read.part)) for read in reads])
            return results

        # What derivatives are made of was computed around this record, which cannot differentiate them.
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
                "the tape and take the gradient inside the function given to strategy.run."
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


def _is_source(value: Leaf) -> bool:
    return is_variable(value) or isinstance(value, (structures.ValueLeaf, IndexedSlices))


def _is_made_of_all_replicas(variable: Variable) -> bool:
    if not isinstance(variable, SyncOnReadVariable) or variable.group.size == 1:
        return False
    return context.get_replica_context() is None


def _weights(targets: Sequence[Any], output_gradients: PyTree) -> list[Tensor]:
    """Returns an array for each target, of its shape and dtype."""
    values = [array_of(variable_of(target)) for target in targets]
    shapes = [(tuple(np.shape(value)), jnp.result_type(value)) for value in values]
    if output_gradients is None:
        return [jnp.ones(shape, dtype) for shape, dtype in shapes]
    given, _ = structures.flatten(output_gradients, lambda x: x is None or _is_source(x))
    if len(given) != len(targets):
        raise InvalidArgumentError(
            f"GradientTape.gradient() takes as many output_gradients as targets, got {len(given)} and "
            f"{len(targets)}."
        )
    weights = []
    for weight, (shape, dtype) in zip(given, shapes, strict=True):
        made = jnp.ones(shape, dtype) if weight is None else jnp.asarray(array_of(weight), dtype)
        if made.shape != shape:
            raise ShapeMismatchError(
                "GradientTape.gradient() takes output_gradients of the shapes of the targets, got "
                f"{made.shape} for {shape}."
            )
        weights.append(made)
    return weights


def _gradient(
    source: Leaf, found: Sequence[tuple[Any | None, Any]], unconnected: UnconnectedGradients
) -> PyTree:
    """Returns the gradient with respect to a source, given those of its reads and their indices."""
    variable = variable_of(source) if is_variable(source) else None
    there = [(gradient, indices) for gradient, indices in found if gradient is not None]
    if not there:
        if unconnected is UnconnectedGradients.NONE:
            return None
        like = array_of(source) if variable is None else variable
        return jnp.zeros(tuple(like.shape), like.dtype)
    whole = [gradient for gradient, indices in there if indices is None]
    total = functools.reduce(jnp.add, whole) if whole else None
    if total is not None and variable is not None:
        total = total.reshape(tuple(variable.shape))
    by_rows = [(gradient, indices) for gradient, indices in there if indices is not None]
    if not by_rows:
        return total
    assert isinstance(variable, BaseRemoteVariable)
    shape = variable.program_shape
    values = [jnp.reshape(gradient, (-1, *shape[1:])) for gradient, _ in by_rows]
    indices = [jnp.reshape(jnp.asarray(numbers), -1) for _, numbers in by_rows]
    rows = IndexedSlices(jnp.concatenate(values), jnp.concatenate(indices), dense_shape=shape)
    return rows if total is None else total + rows.to_dense()


def _note_sum(gradient: PyTree, parts: Sequence[Any | None]) -> None:
    """Tells a replica's frame what it has of the sum over the replicas of a gradient, if that is known."""
    frame = frames.current_frame()
    if gradient is None or not parts or not isinstance(frame, ReplicaFrame):
        return
    there = [part for part in parts if part is not None]
    if len(there) == len(parts):
        frame.note_reduced_shard(gradient, functools.reduce(jnp.add, there))


def _rows(gradients: _Gradients, basis: Tensor, *, at_once: bool) -> list[Tensor | None]:
    """Returns for each source its gradients for each of ``basis`` as the target's weights."""
    connected: list[bool] = []

    def row(weight: Tensor) -> list[Tensor]:
        found = gradients([weight])
        connected[:] = [gradient is not None for gradient in found]
        present = [gradient for gradient in found if gradient is not None]
        return [g.to_dense() if isinstance(g, IndexedSlices) else g for g in present]

    if not len(basis):
        empty = row(jnp.zeros(basis.shape[1:], basis.dtype))
        made = [jnp.zeros((0, *gradient.shape), gradient.dtype) for gradient in empty]
    elif at_once:
        made = jax.vmap(row)(basis)
    else:
        made = [jnp.stack(rows) for rows in zip(*map(row, basis), strict=True)]
    remaining = iter(made)
    return [next(remaining) if there else None for there in connected]


def _conjugate(value: Any | None) -> Tensor | None:
    """Returns the complex conjugate: TensorFlow's gradients are those of JAX with the other sign of i."""
    if value is None or not jnp.issubdtype(value.dtype, jnp.complexfloating):
        return value
    return jnp.conj(value)
