"""``cond``: a conditional whose branches may assign variables and call collectives."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from stratagem._src.core import structures
from stratagem._src.core.errors import ContextError, UnsupportedError, VariableError
from stratagem._src.core.types import ArrayLike, IntegerLike, PyTree, Tensor
from stratagem._src.execution.draws import AnyIterator
from stratagem._src.execution.replicas.replica_frame import ReplicaFrame
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.jaxpr.replication_analysis import require_replicated
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.array_operators import operand_of
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.variables import frames
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable
from stratagem._src.variables.frames import StateFrame
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable
from stratagem._src.variables.random_state import RandomState
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import Variable

__all__ = ["BranchFrame", "cond"]


def cond(
    pred: ArrayLike, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: PyTree
) -> Any:
    """Returns ``true_fn(*operands)`` or ``false_fn(*operands)``; only one of them is computed.

    Unlike in ``jax.lax.cond`` the functions may assign variables, directly or through what they call, such
    as an ``Optimizer`` or a metric. In replicas they may call collectives, if all replicas take the same
    branch: a predicate that may differ between replicas is rejected there.

    Args:
        pred: A scalar; nonzero is true. Eagerly, anything that Python can test for truth.
        true_fn: Called if ``pred`` is true. While a function is traced, both are called, twice each.
        false_fn: Called if ``pred`` is false. It must return the same structure, shapes and dtypes.
        *operands: Arguments of both.

    Raises:
        ReplicaMismatchError: If replicas might take different branches with collectives, or with
            assignments to variables that are replicated.
        UnsupportedError: If a branch updates a variable on parameter servers in a compiled function.

    Differs from tf.distribute: conditionals may contain collectives.

    JAX equivalent: ``jax.lax.cond``.

    >>> import jax.numpy as jnp
    >>> import stratagem as sg
    >>> best = sg.Variable(5.0)
    >>> @sg.function
    ... def note(loss):
    ...     return sg.cond(loss < best, lambda: best.assign(loss).value(), lambda: jnp.float32(-1))
    >>> float(note(jnp.float32(3.0))), float(note(jnp.float32(4.0))), float(best)
    (3.0, -1.0, 3.0)
    """
    predicate = operand_of(pred)
    known = _known(predicate)
    if known is None:
        return _traced(jnp.asarray(predicate), true_fn, false_fn, operands)
    return (true_fn if known else false_fn)(*operands)


def _known(predicate: ArrayLike) -> bool | None:
    """Returns the truth value, or ``None`` if it is traced, so that only the device knows it."""
    try:
        return bool(predicate)
    except jax.errors.TracerBoolConversionError:
        return None


def _traced(
    predicate: Tensor,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: tuple[Any, ...],
) -> Any:
    if predicate.ndim:
        raise VariableError(f"cond needs a scalar predicate, got shape {predicate.shape}.")
    if predicate.dtype != jnp.bool_:
        predicate = predicate != 0
    parent = frames.current_frame()
    if parent is None:
        return jax.lax.cond(predicate, true_fn, false_fn, *operands)
    _flush(parent)
    operands = tuple(
        structures.map_structure(_array, operand, is_value_leaf) for operand in operands
    )
    # First trace both branches abstractly, to find the variables that either of them writes: `lax.cond`
    # needs the same outputs from both.
    written: dict[int, Variable] = {}
    num_writes: collections.Counter[int] = collections.Counter()
    for fn in (true_fn, false_fn):
        frame = BranchFrame(parent)
        jax.eval_shape(lambda *args, fn=fn, frame=frame: frame.call(fn, {}, args), *operands)
        written |= frame.written
        num_writes |= frame.num_writes  # the maximum
    # Replicas may take different branches, but their random states must stay equal: afterwards, all
    # replicas have drawn as often as the branch that draws most.
    states = [v for v in written.values() if isinstance(v, RandomState)] if parent.spmd else []
    for state in states:
        del written[id(state)]
    variables = list(written.values())
    # A gradient tape cannot see the reads of the branches, so it is told of the values they get.
    before = [
        parent.read(variable)
        if isinstance(variable, FullyShardedVariable)
        else frames.record_read(variable, parent.read(variable))
        for variable in variables
    ]
    if parent.spmd and not all(isinstance(variable, SyncOnReadVariable) for variable in variables):
        predicate = require_replicated(predicate)

    def branch(fn: Callable[..., Any]) -> Callable[..., Any]:
        def call(operands: tuple[Any, ...], values: list[Any]) -> Any:
            frame = BranchFrame(parent)
            result = frame.call(fn, dict(zip(written, values, strict=True)), operands)
            return result, [
                frame.read(v).astype(old.dtype) for v, old in zip(variables, values, strict=True)
            ]

        return call

    result, after = jax.lax.cond(predicate, branch(true_fn), branch(false_fn), operands, before)
    for variable, value in zip(variables, after, strict=True):
        parent.check_writable(variable)
        parent.write(variable, value)
    for state in states:
        for _ in range(num_writes[id(state)]):
            state.next_key()
    return result


def _array(leaf: ArrayLike) -> Any:
    return jnp.asarray(operand_of(leaf))


def _flush(frame: StateFrame | None) -> None:
    """Applies pending updates of replicas before a branch, which may contain collectives."""
    while frame is not None:
        if isinstance(frame, ReplicaFrame):
            frame.flush()
        frame = getattr(frame, "parent", None)


class BranchFrame(StateFrame):
    """Frame of one branch: keeps the values that the branch assigns.

    Args:
        parent: The outer frame, around the conditional.

    Attributes:
        written: The variables that the branch assigns.
        num_writes: How often it assigns each of them.
    """

    def __init__(self, parent: StateFrame) -> None:
        super().__init__()
        self.spmd = parent.spmd
        self.eager = parent.eager
        self.holds_shards = parent.holds_shards
        self.parent = parent
        self.written: dict[int, Variable] = {}
        self.num_writes: collections.Counter[int] = collections.Counter()
        self._values: dict[int, Any] = {}

    def call(self, fn: Callable[..., Any], values: Mapping[int, Any], operands: PyTree) -> Any:
        """Calls a branch with the given values of variables, and returns its result as arrays."""
        self.open()
        self._values = dict(values)
        with frames.enter(self):
            return structures.map_structure(_array, fn(*operands), is_value_leaf)

    def read(self, variable: Variable) -> Any:
        """Returns the value in this branch, or in the outer frame."""
        if id(variable) in self._values:
            return self._values[id(variable)]
        return self.parent.read(variable)

    def full_value(self, variable: FullyShardedVariable, row: IntegerLike = None) -> Any:
        """Returns the value in this branch, or in the outer frame."""
        if id(variable) in self._values:
            return super().full_value(variable, row)
        return self.parent.full_value(variable, row)

    def write(self, variable: Variable, value: Tensor) -> None:
        """Keeps the value."""
        self._values[id(variable)] = value
        self.written[id(variable)] = variable
        self.num_writes[id(variable)] += 1

    def create(self, variable: Variable, initial_value: ArrayLike) -> None:
        """Passes the new variable (optimizer state, for example) to the outer frame."""
        if is_tracer(initial_value):
            super().create(variable, initial_value)
        self.parent.create(variable, initial_value)

    def use_group(self, group: ReplicaGroup) -> None:
        """Forwards to the outer frame."""
        self.parent.use_group(group)

    def draw(self, iterator: AnyIterator, *, optional: bool = False) -> Any:
        """Raises: whether an element is drawn must not depend on the device."""
        raise ContextError(
            "next(iterator) is called inside a conditional of a compiled function. Call it before, and "
            "pass the element."
        )

    def update_in_turn(self, variable: Variable, update: Update, operand: PyTree) -> None:
        """Raises: whose turn it is would depend on the branch."""
        raise VariableError(
            f"Variable {variable.name!r} was created outside of the strategy's scope and cannot be updated "
            "by several replicas inside cond. Create it inside strategy.scope()."
        )

    def rows(self, variable: BaseRemoteVariable, indices: ArrayLike) -> Any:
        """Raises: rows are fetched before or after the conditional."""
        self._refuse(variable)

    def update_remotely(
        self, variable: BaseRemoteVariable, update: Update, operand: PyTree
    ) -> None:
        """Raises: updates are sent when the program has run."""
        self._refuse(variable)

    def _refuse(self, variable: Variable) -> NoReturn:
        raise UnsupportedError(
            f"Variable {variable.name!r} lives on a parameter server. It cannot be updated or read by rows "
            "inside cond in a compiled function. Do it outside, with jnp.where(pred, x, 0)."
        )
