"""``Variable``: an array that keeps its value between steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Self, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import (
    ContextError,
    UnsupportedError,
    VariableError,
)
from stratagem._src.core.structures import ValueLeaf
from stratagem._src.core.tensor_shape import TensorShape
from stratagem._src.core.types import ArrayLike, DTypeLike, Initializer, PyTree
from stratagem._src.current_strategy import context
from stratagem._src.current_strategy.protocols import ReplicaContextProtocol
from stratagem._src.jax_compat.tracing import is_tracer, under_jit, under_trace
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.process.signal_handlers import in_signal_handler
from stratagem._src.values.array_methods import ArrayMethods
from stratagem._src.values.array_operators import operand_of
from stratagem._src.variables import frames, transactions, updates
from stratagem._src.variables.in_place_operators import InPlaceOperators
from stratagem._src.variables.initial_array import initial_array
from stratagem._src.variables.locking import (
    ACTIVE_CALLS,
    STORAGE,
    STORAGE_LOCK,
    change,
    claim,
    content_for_others,
)
from stratagem._src.variables.operands import checked_operand
from stratagem._src.variables.update_methods import UpdateMethods
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable_attributes import UNNAMED, VariableAttributes
from stratagem._src.variables.variable_options import VariableAggregation, VariableSynchronization
from stratagem._src.variables.variable_ref import VariableRef

__all__ = [
    "Variable",
    "create_plain_variable",
    "is_own_variable",
    "is_plain_variable",
    "register_virtual_variable",
]

_virtual: set[type] = set()
_logger = logging.getLogger("stratagem")
_warned_of_copies: list[str] = []


class _VariableType(type):
    """Makes ``Variable(...)`` build the variable class of the current strategy.

    It also makes ``isinstance(v, Variable)`` true for variables of other libraries that behave like one.
    The library itself asks ``is_own_variable``.
    """

    def __call__(cls, *args: PyTree, **kwargs: PyTree) -> Any:
        if cls is not Variable:
            return super().__call__(*args, **kwargs)
        return context.get_strategy().extended.create_variable(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return type.__instancecheck__(cls, instance) or (
            cls is Variable and type(instance) in _virtual
        )


class Variable(
    InPlaceOperators,
    VariableAttributes,
    ArrayMethods,
    UpdateMethods,
    ValueLeaf,
    metaclass=_VariableType,
):
    """An array that keeps its value between steps and can be updated.

    The strategy in whose scope it is created places it: mirrored on every replica, on one central device,
    on parameter servers, or with a separate value in each replica. Outside of a scope it is a plain
    variable on one device. It works wherever an array does, including ``jax.numpy`` functions.

    Args:
        initial_value: Array, number, or a function without arguments that returns one.
        trainable: Whether optimizers should update it. Default: ``True``, but ``False`` for
            ``ON_READ``.
        name: Name shown in messages. Default: its path in the first structure that is passed to
            ``value_and_grad``, an ``Optimizer`` or a ``Checkpoint``, such as ``"layer1/w"``; until then
            ``"Variable"``.
        dtype: Element type. Default: that of the initial value.
        constraint: A function that your optimizer may apply to the value after an update. It is stored as
            ``variable.constraint``; ``assign`` does not apply it.
        synchronization: When the replicas' copies are synchronized.
        aggregation: How the replicas' updates (``ON_WRITE``) or copies (``ON_READ``) are combined.
        shape: Expected shape of the initial value; it must be fully defined.

    Differs from tf.distribute: updating a mirrored variable with aggregation ``NONE`` in replica context
    raises, because the copies would silently diverge. A variable's shape never changes.

    >>> import stratagem as sg
    >>> v = sg.Variable([1.0, 2.0])
    >>> v.assign_add([1.0, 1.0])
    <sg.Variable 'Variable:0' shape=(2,) dtype=float32, numpy=array([2., 3.], dtype=float32)>
    >>> float((v * 2).sum())
    10.0
    """

    travels = False  # replicas use the variable itself, not a component of it

    __slots__ = ("__weakref__", "_array", "_on_mesh", "_shared")

    def __init__(
        self,
        initial_value: Initializer,
        trainable: bool | None = None,
        name: str | None = None,
        dtype: DTypeLike = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
    ) -> None:
        value = initial_array(initial_value, dtype)
        on_read = synchronization is VariableSynchronization.ON_READ
        self._name = name or UNNAMED
        self._dtype = value.dtype
        self._shape = TensorShape(value.shape)
        self._trainable = (not on_read) if trainable is None else bool(trainable)
        self._synchronization = synchronization
        self._aggregation = aggregation
        self._array: Any = None
        self._on_mesh: tuple[Any, Any] | None = None
        self._shared = False
        self._check_aggregation_of_dtype()
        frame = frames.current_frame()
        if frame is not None:
            frame.create(self, value)
        elif is_tracer(value):
            raise ContextError(
                f"Variable {self._name!r} is created inside a JAX transformation with a traced "
                "initial value. Create it outside, or inside a stratagem.function."
            )
        else:
            self.initialize(value)

    def _check_aggregation_of_dtype(self) -> None:
        """Raises if the aggregation is not possible for this dtype; a plain variable aggregates nothing."""

    # Name of the slot that caches something derived from the stored array, if there is one. The cache is
    # valid as long as that array is stored.
    cached_attribute: str | None = "_on_mesh"

    # --- placement -------------------------------------------------------------------------------

    @property
    def device(self) -> str:
        """Full name of the device of this process that holds the value."""
        return self.group.local_device_names[0]

    @property
    def group(self) -> ReplicaGroup:
        """The devices that hold the value."""
        with STORAGE_LOCK:
            devices = self._stored().devices()
        return ReplicaGroup.of(sorted(devices, key=lambda device: device.id)[:1])

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Returns a variable of the same class and placement with the same value.

        Raises:
            UnsupportedError: While a function is traced.
        """
        if frames.current_frame() is not None or under_jit():
            raise UnsupportedError(
                f"Variable {self.name!r} cannot be copied inside a compiled function. Copy it outside."
            )
        memo[id(self)] = duplicate = self._duplicate()
        return duplicate

    def frozen(self) -> Self:
        """Returns a variable that keeps the current value; no array is copied."""
        return self._duplicate()

    def _duplicate(self) -> Self:
        made = object.__new__(type(self))
        for cls in type(self).__mro__:
            for name in getattr(cls, "__slots__", ()):
                if name != "__weakref__" and hasattr(self, name):
                    setattr(made, name, getattr(self, name))
        made._on_mesh = None
        made.restore_snapshot(self.snapshot())
        return made

    def ref(self) -> VariableRef:
        """Returns a hashable reference, to use variables as keys of a dictionary."""
        return VariableRef(self)

    def __repr__(self) -> str:
        return self._describe(self._name, self._eager_value)

    def _describe(self, name: str, read: Callable[[], Any]) -> str:
        head = f"<sg.Variable '{name}:0' shape={self._shape} dtype={self.dtype.name}"
        if frames.current_frame() is not None or self._array is None:
            return f"{head}>"
        value = np.asarray(read())
        return (
            f"{head}, numpy={value.item()!r}>" if value.ndim == 0 else f"{head}, numpy={value!r}>"
        )

    # --- reading --------------------------------------------------------------------------------

    def read_value(self) -> Any:
        """Returns the current value as an array that later updates do not change."""
        return self._value()

    def value(self) -> Any:
        """Same as ``read_value``."""
        return self._value()

    def sparse_read(self, indices: ArrayLike, name: str | None = None) -> Any:
        """Returns the rows at ``indices``; from parameter servers only these rows are fetched.

        Args:
            indices: Integer array of any shape.
            name: Ignored.

        Returns:
            An array of shape ``indices.shape + self.shape[1:]``.
        """
        return self._value()[jnp.asarray(operand_of(indices))]

    def value_on_host(self) -> np.ndarray[Any, Any]:
        """Returns the current value as a NumPy array, even while a function is traced."""
        return np.asarray(self._eager_value())

    def _value(self) -> Any:
        if self._interrupts_trace():
            return frames.call_outside(self.value_on_host)
        return frames.record_read(self, self._current_value())

    def _interrupts_trace(self) -> bool:
        """Returns whether this is a read by a signal handler that interrupts a trace.

        The trace must not notice it: what the handler reads from the frame, a later read of the traced
        function would get too, but the handler may run while JAX traces something else in between.
        """
        return (frames.current_frame() is not None or under_trace()) and in_signal_handler()

    def _current_value(self) -> Any:
        frame = frames.current_frame()
        if frame is not None:
            return frame.as_computed(self, frame.read(self))
        if under_jit():
            raise ContextError(
                f"Variable {self.name!r} is read inside jax.jit (or lax.scan, jax.vmap, ...) outside "
                "of a stratagem.function: its current value would be compiled in as a constant. Use "
                "stratagem.function in place of jax.jit, or pass the value as an argument."
            )
        return self._eager_value()

    # --- updating -------------------------------------------------------------------------------

    def _update(self, update: Update, operand: ArrayLike) -> Self:
        checked = self.check_operand(update, operand)
        frame = frames.current_frame()
        replica = context.get_replica_context()
        if replica is not None and is_plain_variable(self):
            self._warn_of_own_copy(replica)
        if frame is not None and replica is not None and replica.num_replicas_in_sync > 1:
            frame.check_writable(self)
            frame.update_in_turn(self, update, checked)
        else:
            self.apply(update, checked)
        return self

    def _warn_of_own_copy(self, replica: ReplicaContextProtocol) -> None:
        """Logs once that each worker trains a copy of its own; counters and statistics may differ."""
        is_weight = self._trainable and jnp.issubdtype(self._dtype, jnp.inexact)
        if not is_weight or _warned_of_copies or not replica.strategy.replica_group.spans_processes:
            return
        _warned_of_copies.append(self.name)
        _logger.warning(
            "Variable %r was created outside of the strategy's scope and is updated in the replicas of "
            "several workers: each worker has a copy of its own, updated by its own replicas only, and "
            "nothing keeps the copies equal. Create it under `with strategy.scope():`; or with "
            "trainable=False, if it belongs to one worker.",
            self.name,
        )

    def apply(self, update: Update, operand: ArrayLike) -> None:
        """Applies the update to the value now."""
        frame = frames.current_frame()
        if frame is not None:
            frame.check_writable(self)
            frame.write(self, update.apply(frame.read(self), operand))
            return
        self.check_not_tracing(operand)

        def replace() -> None:
            new = update.apply(self._stored(), self.place(operand))
            self.store(new, shared=update is updates.ASSIGN)

        change(self, replace)

    def commit(self, value: ArrayLike) -> None:
        """Assigns the value that ``value_and_grad`` deferred while it traced."""
        self._update(updates.ASSIGN, value)

    def check_not_tracing(self, operand: ArrayLike) -> None:
        """Checks that an update outside of any state frame is not part of a JAX transformation.

        Raises:
            ContextError: Inside the user's own ``jax.jit``, ``jax.grad`` and the like.
        """
        if any(is_tracer(leaf) for leaf in jax.tree.leaves(operand)) or under_jit():
            raise ContextError(
                f"Variable {self.name!r} is assigned inside a JAX transformation (jax.jit, jax.grad, "
                "lax.scan, ...), which the new value cannot leave. Use stratagem.function in place "
                "of jax.jit and stratagem.value_and_grad in place of jax.value_and_grad, or assign "
                "outside of the transformation."
            )

    def check_operand(self, update: Update, operand: ArrayLike) -> Any:
        """Returns ``operand`` as arrays of this variable's dtype, checked against its shape.

        Raises:
            VariableError: If it is of the wrong kind, or would lose information.
            ShapeMismatchError: If its shape does not fit.
        """
        return checked_operand(self, update, operand)

    def array_to_keep(self, operand: ArrayLike) -> np.ndarray[Any, Any]:
        """Returns a private copy of an operand that is not a JAX array."""
        # JAX may alias the memory of a NumPy array, which its owner may change later.
        return np.array(operand)

    # --- storage: defined by each placement -------------------------------------------------------

    @property
    def initialized(self) -> bool:
        """Whether it has an initial value."""
        return self._array is not None

    @property
    def expects_value(self) -> bool:
        """Whether another value replaces its initial value: never for a plain variable."""
        return False

    def initialize(self, value: ArrayLike) -> None:
        """Stores the initial value."""
        self._array = self.place(value)
        self._shared = True

    def place(self, value: ArrayLike) -> Any:
        """Returns ``value`` (an array or rows) with this variable's placement."""
        if self._array is None:
            return jnp.asarray(value)
        return jax.device_put(value, self._array.sharding)

    def store(self, array: ArrayLike, *, shared: bool = False) -> None:
        """Replaces the stored array and records the old one in the call's journal.

        The caller holds the storage lock, by ``change``.

        Args:
            array: The new array.
            shared: Whether other code may hold it too. A shared array must not be donated.
        """
        transactions.before_change(self)
        self._array, self._shared = array, shared

    def snapshot(self) -> Any:
        """Returns the stored content and marks it as shared, so that it is never donated to a program."""
        with STORAGE_LOCK:
            self._shared = True
            return None if self._array is None else self._stored()

    def restore_snapshot(self, content: Any) -> None:
        """Stores the content that ``snapshot`` returned."""
        with STORAGE_LOCK:
            self._array, self._shared = content, True

    def _stored(self) -> Any:
        """Returns the array that this thread may see; the caller holds the storage lock."""
        if ACTIVE_CALLS or STORAGE.complete is not None:
            before = self._before_others()
            if before is not None:
                return before[1]
        return self._own_array()

    def _before_others(self) -> tuple[Variable, Any] | None:
        """Returns the value from before an active call of another thread, if that call has changed it.

        If this thread works for an eager run, that run owns the variable from here on.
        """
        if STORAGE.complete is not None:
            # This is a signal handler that interrupted a step after its launch. Store all of the step's
            # results first, so that the handler sees every variable as it is after the step.
            STORAGE.complete()
            STORAGE.was_read = True
        if not ACTIVE_CALLS:
            return None
        claim(self)
        return content_for_others(self)

    def _own_array(self) -> Any:
        if self._array is None:
            raise VariableError(
                f"Variable {self.name!r} has no value: the function call that created it failed. "
                "Create it again."
            )
        return self._array

    def _eager_value(self) -> Any:
        with STORAGE_LOCK:
            self._shared = True
            array = self._stored()
        replica = context.get_replica_context() if context.has_strategy() else None
        if replica is not None and replica.replica_index is not None:
            return jax.device_put(
                array, replica.strategy.replica_group.local_devices[replica.replica_index]
            )
        return array

    # --- storage: used by compiled programs -------------------------------------------------------

    @property
    def program_shard_dim(self) -> int | None:
        """The dim of a program's array that is sharded over the replicas; ``None`` if it is replicated."""
        return None

    @property
    def program_layout(self) -> Any:
        """How a program's array is sharded over replicas or their devices; ``None`` if it is not."""
        return self.program_shard_dim

    def program_sharding(self, group: ReplicaGroup) -> Any:
        """Returns the sharding of the array that a program on ``group`` returns."""
        return group.program_sharding(group.named_sharding(self.program_shard_dim))

    def constrained(self, value: ArrayLike) -> Any:
        """Returns a traced value with the layout that the variable has on a replica's devices, if any."""
        return value

    @property
    def program_shape(self) -> tuple[int, ...]:
        """Shape of the array that a program takes."""
        return tuple(dim or 0 for dim in self._shape)

    @property
    def replica_shape(self) -> tuple[int, ...]:
        """Shape of one replica's array inside a program."""
        return tuple(dim or 0 for dim in self._shape)

    def program_value(self, value: ArrayLike) -> Any:
        """Returns an initial value in the form that a program takes."""
        return value

    def replica_value(self, value: ArrayLike) -> Any:
        """Returns an initial value in the form that one replica has inside a program."""
        return value

    def stores_program_results(self, group: ReplicaGroup | None) -> bool:
        """Returns whether a program's result on ``group`` can be stored without conversion."""
        return group is None

    def passes_as_stored(self, group: ReplicaGroup | None) -> bool:
        """Returns whether a program on ``group`` takes and returns the stored array without conversion.

        That holds while the slot that ``cached_attribute`` names is ``None`` and, for donation, while the
        array is not shared.
        """
        return group is None

    def take_for_program(self, group: ReplicaGroup | None, donate: bool) -> Any:
        """Returns the array to pass to a program on ``group``; the caller holds the storage lock.

        Args:
            group: The program's devices, or ``None`` if the program is not bound to a group.
            donate: Whether the program may overwrite the array (buffer donation).
        """
        array = self._stored()
        if group is None:
            return jnp.copy(array) if donate and self._shared else array
        on_mesh = self._on_mesh
        if on_mesh is None or on_mesh[0] is not array or on_mesh[1].sharding != group.replicated:
            return jnp.copy(group.replicate(array))
        return jnp.copy(on_mesh[1]) if donate and self._shared else on_mesh[1]

    def accept_from_program(
        self, group: ReplicaGroup | None, array: ArrayLike, shared: bool
    ) -> None:
        """Stores a result of a program on ``group``; ``shared`` if other code may hold the array too."""
        self._shared = shared
        if group is None or len(group.device_set) == 1:
            self._array, self._on_mesh = array, None
        else:
            # The next program takes the replicated array; all other readers see the copy on one device.
            self._array = array.addressable_data(0)
            self._on_mesh = (self._array, array)


def create_plain_variable(*args: PyTree, **kwargs: PyTree) -> Variable:
    """Returns a variable on one device, regardless of the current strategy."""
    variable: Variable = type.__call__(Variable, *args, **kwargs)
    return variable


def is_own_variable(value: object) -> TypeGuard[Variable]:
    """Returns whether ``value`` is a variable of this library, and does not only behave like one."""
    return type.__instancecheck__(Variable, value)


def is_plain_variable(variable: Variable) -> bool:
    """Returns whether a variable is on one device of this process, and no strategy has placed it."""
    return type(variable) is Variable


def register_virtual_variable(cls: type, read: Callable[[Any], Any]) -> None:
    """Makes instances of another library's class variables to users, and to JAX functions.

    Args:
        cls: The class, a ``ValueLeaf``.
        read: Returns the value of an instance.
    """
    _virtual.add(cls)
    _flatten_to_value(cls, read)


# As an argument of a JAX function a variable flattens to its value: that is what jnp.sum(v) and
# jax.grad(f)(v) mean. Functions of this library treat variables as leaves.
def _flatten_to_value(cls: type, read: Callable[[Any], Any]) -> None:
    jax.tree_util.register_pytree_node(
        cls, lambda variable: ((read(variable),), None), lambda _, children: children[0]
    )


def _register(cls: type[Variable]) -> None:
    _flatten_to_value(cls, lambda variable: variable._value())


_register(Variable)
