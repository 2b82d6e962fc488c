"""``PlacedVariable``: a Keras variable whose value is stored in a ``stratagem.Variable``."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, Self

import keras
import numpy as np

from stratagem._src.core.errors import ContextError, UnsupportedError, VariableError
from stratagem._src.core.structures import ValueLeaf
from stratagem._src.core.types import ArrayLike, DTypeLike
from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras.host_initializers import host_value
from stratagem._src.integrations.keras.keras_internals import COMMON_VARIABLE, in_stateless_scope
from stratagem._src.integrations.keras.replicas import eager_replica_context, multi_replica_context
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.central_storage import CentralExtended
from stratagem._src.strategies.mirrored import MirroredExtended
from stratagem._src.strategies.parameter_server import ParameterServerExtended
from stratagem._src.variables import frames
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable
from stratagem._src.variables.central_variable import CentralVariable
from stratagem._src.variables.distributed_variable import AggregatingVariable
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable
from stratagem._src.variables.laid_out_variable import laid_out_like
from stratagem._src.variables.locking import STORAGE_LOCK
from stratagem._src.variables.mirrored_variable import MirroredVariable
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable, counting_once
from stratagem._src.variables.variable import Variable, register_virtual_variable
from stratagem._src.variables.variable_options import VariableAggregation, VariableSynchronization

__all__ = ["PlacedVariable", "Taken", "check_strategy", "strategy_of"]

# What users know of variables, and Keras's do not have.
_METHODS_OF_TWIN = frozenset(
    (
        *("device", "distribute_strategy", "get_shape", "initialized", "ref", "size", "values"),
        *("read_value", "sparse_read", "scatter_add", "scatter_sub", "scatter_mul", "scatter_div"),
        *("scatter_min", "scatter_max", "scatter_update"),
    )
)
_read = COMMON_VARIABLE.value.fget
_AGGREGATIONS = {
    "sum": VariableAggregation.SUM,
    "mean": VariableAggregation.MEAN,
    "only_first_replica": VariableAggregation.ONLY_FIRST_REPLICA,
}


class Taken(Protocol):
    """The location of a variable's value while it is not in the variable."""

    def value(self) -> Any | None:
        """Returns the value, or ``None`` if it is not here."""

    def return_value(self) -> None:
        """Stores the value in the variable."""


class PlacedVariable(keras.Variable, ValueLeaf):  # type: ignore[misc]
    """A Keras variable that was created in the scope of a strategy.

    Its value is stored only in ``twin``, a variable of the strategy: Keras and this library see the same
    state, in replicas, in compiled functions and outside. Weights are mirrored; the state of metrics, which
    Keras synchronizes on read, has a value in each replica. It is an ``sg.Variable`` to users: methods that
    Keras does not have are those of the twin.

    Attributes:
        strategy: The strategy.
        twin: The ``stratagem.Variable``; ``None`` until Keras provides the initial value.
        taken: The location of the value while Keras runs steps; otherwise ``None``.
        slot_of: For a slot of an optimizer, its variable, if that is on parameter servers or laid out by
            sharding rules.
    """

    travels = False  # replicas use the variable itself

    strategy: Strategy
    twin: Variable | None = None
    taken: Taken | None = None
    slot_of: PlacedVariable | None = None
    _known: tuple[Any, Any] | None = None

    # --- the initial value ------------------------------------------------------------------------

    def _initialize(self, value: ArrayLike) -> None:
        self._shape = self._validate_shape(value.shape)
        self._create_twin(value)

    def _initialize_with_initializer(self, initializer: Callable[..., Any]) -> None:
        value = host_value(initializer, self._shape, self._dtype)
        if value is None:
            self._create_twin(
                lambda: self._convert_to_tensor(initializer(self._shape, dtype=self._dtype))
            )
        else:
            self._create_twin(value)

    def _create_twin(self, value: ArrayLike) -> None:
        if self.twin is not None:  # a view of an existing variable: see as_keras_variables
            return
        if eager_replica_context() is not None:
            raise ContextError(
                f"Keras variable {self._path!r} is created by one of several replicas that run "
                "eagerly, each of which would create its own. Build layers, optimizers and metrics "
                "before strategy.run(), for example with model.build(input_shape) or keras.Input(...) "
                "and optimizer.build(model.trainable_variables) in the strategy's scope."
            )
        on_read = self._synchronization == "on_read"
        # Keras provides the state of a metric as one value, independent of the number of replicas.
        with context.enter(context.Frame(self.strategy, None)), counting_once(), self._beside():
            self.twin = self.strategy.extended.create_variable(
                value,
                trainable=self._trainable,
                name=self._path,
                synchronization=VariableSynchronization.ON_READ
                if on_read
                else VariableSynchronization.AUTO,
                aggregation=self._twin_aggregation(),
            )
        if on_read and isinstance(self.twin, BaseRemoteVariable):
            self.twin.restart_at_zero()

    def _beside(self) -> AbstractContextManager[Any]:
        """Returns the scope that puts an optimizer's slot where its variable is."""
        if self.slot_of is None:
            return contextlib.nullcontext()
        if not isinstance(self.strategy.extended, ParameterServerExtended):
            return laid_out_like(self.slot_of.twin)
        return self.strategy.extended.colocate_vars_with(self.slot_of.own_twin())

    def _twin_aggregation(self) -> VariableAggregation:
        if self._aggregation in _AGGREGATIONS:
            return _AGGREGATIONS[self._aggregation]
        # Running statistics, such as those of BatchNormalization, which does not set an aggregation.
        statistic = not self._trainable and keras.backend.is_float_dtype(self._dtype)
        return VariableAggregation.MEAN if statistic else VariableAggregation.NONE

    # --- reading and updating ---------------------------------------------------------------------

    @property
    def value(self) -> Any:
        """The current value: the replica's own value in a replica, a tracer in a trace."""
        if self.twin is None or in_stateless_scope():
            return _read(self)
        return self._maybe_autocast(self._value)

    @property
    def _value(self) -> Any:
        twin = self.twin
        if twin is None:
            return None
        if frames.current_frame() is not None:
            self.release()
            return twin._value()
        return frames.record_read(twin, self._eager_value(twin))

    @_value.setter
    def _value(self, value: ArrayLike) -> None:
        if self.twin is not None:
            # Keras sets None before it replaces a value; the twin keeps its value.
            if value is not None:
                self._direct_assign(value)
        elif value is not None:
            self._create_twin(value)

    def _eager_value(self, twin: Variable) -> Any:
        taken = self.taken
        if taken is not None and (value := taken.value()) is not None:
            return value
        if (known := self.known_value()) is not None:
            return known
        # Allowed inside jax.jit and similar transformations, unlike for stratagem.Variable: Keras reads
        # weights in lax.scan (recurrent layers) and during shape inference.
        if not isinstance(twin, (MirroredVariable, CentralVariable)):
            return twin._eager_value()
        # Another thread may take the array right now; its first step would then donate the array that is
        # read here. Under the lock the array is either still in the variable, which records that it is
        # shared, or taken.
        with STORAGE_LOCK:
            if self.taken is None or self.taken is taken:
                return twin._eager_value()
        return self._eager_value(twin)

    def _direct_assign(self, value: ArrayLike) -> None:
        self._check_aggregated("assign")
        self.own_twin().assign(value)

    def assign_add(self, value: ArrayLike) -> Any:
        """Adds ``value``; in replicas, their values are aggregated as the variable's aggregation says."""
        return self._increase("assign_add", value)

    def assign_sub(self, value: ArrayLike) -> Any:
        """Subtracts ``value``; see ``assign_add``."""
        return self._increase("assign_sub", value)

    def _increase(self, method: str, value: ArrayLike) -> Any:
        if in_stateless_scope() or not isinstance(self.twin, AggregatingVariable):
            return getattr(super(), method)(value)
        self.release()
        self._check_aggregated(method)
        getattr(self.twin, method)(self._convert_to_tensor(value, dtype=self._dtype))
        # Reading from a server takes a message.
        return self if isinstance(self.twin, BaseRemoteVariable) else self.value

    def assign_equal(self, value: ArrayLike) -> None:
        """Sets a value that every replica has computed equally."""
        twin, frame = self.own_twin(), frames.current_frame()
        if frame is None:
            twin.commit(value)
        else:
            frame.check_writable(twin)
            if isinstance(twin, FullyShardedVariable):
                frame.write_full_value(twin, value)
            else:
                frame.write(twin, value)

    def _check_aggregated(self, method: str) -> None:
        twin = self.own_twin()
        if multi_replica_context() is None or twin.aggregation is not VariableAggregation.NONE:
            return
        if isinstance(twin, AggregatingVariable):
            raise VariableError(
                f"{method}() of Keras variable {self._path!r} in replica context needs an aggregation, "
                "because the replicas' values may differ. Create it with add_weight(..., "
                "aggregation='mean') (or 'sum', or 'only_first_replica'), update it by an optimizer, or "
                "in cross-replica context."
            )

    def note_value(self, value: ArrayLike) -> None:
        """Caches the aggregate of the replicas' values that have just been stored.

        Computing it needs a collective of all workers. But a callback that runs in only one of them, such
        as ``ModelCheckpoint`` on the leader, may read a model's values between two steps.
        """
        if isinstance(self.twin, SyncOnReadVariable):
            self._known = (self.twin.stored_now(), value)

    def known_value(self) -> Any | None:
        """Returns the cached aggregate, if nothing has been stored since and this is not a replica."""
        if self._known is None or not isinstance(self.twin, SyncOnReadVariable):
            return None
        stored, value = self._known
        unchanged = stored is not None and self.twin.stored_now() is stored
        return value if unchanged and multi_replica_context() is None else None

    def release(self) -> None:
        """Stores the value in the variable again, if Keras has taken it for steps."""
        if self.taken is not None:
            self.taken.return_value()

    def own_twin(self) -> Variable:
        """Returns the twin, which then holds the value.

        Raises:
            VariableError: If Keras has not provided an initial value yet.
        """
        if self.twin is None:
            raise VariableError(
                f"Keras variable {self._path!r} has no value yet. Build the layer that it belongs to."
            )
        self.release()
        return self.twin

    if not TYPE_CHECKING:  # a type checker that sees it believes in every name

        def __getattr__(self, name):
            if name in _METHODS_OF_TWIN and self.twin is not None:
                return getattr(self.own_twin(), name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # NumPy leaves its operators to this class, so that `np.float64(2) * variable` is traced.
    __array_priority__ = 100

    def __array__(self, dtype: DTypeLike = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        # Keras's own method lacks `copy`, and NumPy warns about that.
        return np.array(self.value, dtype, copy=copy)

    # --- copies -----------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        self.release()
        memo[id(self)] = made = object.__new__(type(self))
        for name, content in self.__dict__.items():
            made.__dict__[name] = content if name == "strategy" else copy.deepcopy(content, memo)
        return made

    def __setstate__(self, content: dict[str, Any]) -> None:
        """Restores from the attributes of an ordinary variable, when one is copied in a scope."""
        value = content.pop("_value", None)
        self.__dict__.update(content)
        self._value = value


# Keras names unnamed variables after their class.
PlacedVariable.__name__ = keras.Variable.__name__
register_virtual_variable(PlacedVariable, lambda variable: variable.value)


def check_strategy(strategy: Strategy) -> None:
    """Checks that Keras can be used under a strategy.

    Raises:
        UnsupportedError: If not.
    """
    if context.has_strategy() and not isinstance(
        strategy.extended, (MirroredExtended, CentralExtended, ParameterServerExtended)
    ):
        raise UnsupportedError(
            f"Keras needs variables in this process, and {type(strategy).__name__} does not create "
            "them. Create Keras objects in the scope of a MirroredStrategy, CentralStorageStrategy, "
            "MultiWorkerMirroredStrategy, TPUStrategy, OneDeviceStrategy or ParameterServerStrategy, or "
            "write the model with "
            "stratagem.Variable."
        )


def strategy_of(variables: Iterable[Any]) -> Strategy | None:
    """Returns the strategy in whose scope Keras variables were created; ``None`` if in no scope.

    Raises:
        ContextError: If they do not all belong together.
    """
    owners: dict[int, tuple[Any, Any]] = {}
    for variable in variables:
        owner = getattr(variable, "strategy", None)
        if owner is context.default_frame().strategy:
            owner = None
        owners.setdefault(id(owner), (owner, variable))
    if len(owners) > 1:
        (one, first), (other, second) = list(owners.values())[:2]
        raise ContextError(
            "Keras variables that are used together must be created in one scope, got "
            f"{first.path!r} {_created(one)} and {second.path!r} {_created(other)}. Create the model, "
            "its optimizer and its metrics inside the same `with strategy.scope():`."
        )
    return next(iter(owners.values()))[0] if owners else None


def _created(strategy: Strategy | None) -> str:
    return "outside of any scope" if strategy is None else f"in the scope of {strategy!r}"
