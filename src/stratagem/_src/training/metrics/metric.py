"""``Metric``: the base class of metrics, and their state."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self

import jax.numpy as jnp
import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import DTypeLike, Initializer, PyTree, ShapeLike
from stratagem._src.current_strategy import context
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables.distributed_variable import DistributedVariable
from stratagem._src.variables.sync_on_read_variable import counting_once
from stratagem._src.variables.variable import Variable
from stratagem._src.variables.variable_options import VariableAggregation, VariableSynchronization

__all__ = ["Metric"]

_INITIALIZERS: dict[str, Callable[..., Any]] = {"zeros": np.zeros, "ones": np.ones}


class Metric:
    """Base class of metrics, whose state accumulates over replicas and steps.

    Subclass it: create the state with ``add_variable`` in ``__init__``, change it with ``assign_add`` in
    ``update_state``, and compute the result in ``result``. Create a metric in the strategy's scope. Each
    replica then has its own state, so that an update needs no communication. The replicas' states are
    summed when ``result`` is called.

    * ``update_state`` in a replica adds the replica's values. In cross-replica context a value counts
      once, and each replica gets its component of a per-replica value.
    * ``result`` covers all replicas wherever it is called: also inside a replica, where all replicas must
      call it, like any collective, and inside ``sg.function``.
    * ``train.Checkpoint`` saves metrics, with the sum over the replicas.

    Args:
        name: Its name in messages, and the prefix of its variables' names. Default: from the class name.
        dtype: Element type of the state and of the result; default ``float32``.

    >>> import jax.numpy as jnp
    >>> import stratagem as sg
    >>> class Share(sg.metrics.Metric):
    ...     def __init__(self, name="share_of_positives", dtype=None):
    ...         super().__init__(name, dtype)
    ...         self.positives = self.add_variable(name="positives")
    ...         self.seen = self.add_variable(name="seen")
    ...     def update_state(self, values):
    ...         self.positives.assign_add(jnp.sum(values > 0, dtype=self.dtype))
    ...         self.seen.assign_add(jnp.asarray(values.size, self.dtype))
    ...     def result(self):
    ...         return self.positives / self.seen
    >>> metric = Share()
    >>> float(metric(jnp.array([1.0, -2.0, 3.0, 4.0])))
    0.75
    """

    constructor_arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: PyTree, **kwargs: PyTree) -> Self:
        """Records the constructor arguments, from which an equivalent Keras metric can be created."""
        made = super().__new__(cls)
        made.constructor_arguments = args, kwargs
        return made

    def __init__(self, name: str | None = None, dtype: DTypeLike = None) -> None:
        self._name = name or _snake_case(type(self).__name__)
        self._dtype = np.dtype(np.float32 if dtype is None else dtype)
        self._variables: dict[str, Variable] = {}
        self._initial: dict[str, Any] = {}

    def __init_subclass__(cls, **kwargs: PyTree) -> None:
        super().__init_subclass__(**kwargs)
        if "update_state" in cls.__dict__:
            cls.update_state = _run_in_replicas(cls.__dict__["update_state"])  # type: ignore[method-assign]
        if "result" in cls.__dict__:
            cls.result = _merged_over_replicas(cls.__dict__["result"])  # type: ignore[assignment, method-assign]

    # --- to be implemented by subclasses ------------------------------------------------------------

    def update_state(self, *args: PyTree, **kwargs: PyTree) -> None:
        """Adds values to the state. To be implemented by subclasses."""
        raise NotImplementedError(f"{type(self).__name__} must implement update_state().")

    def result(self) -> Any:
        """Returns the metric over all replicas and all updates since the last reset."""
        raise NotImplementedError(f"{type(self).__name__} must implement result().")

    # --- state ----------------------------------------------------------------------------------------

    def add_variable(
        self,
        shape: ShapeLike = (),
        initializer: Initializer = "zeros",
        dtype: DTypeLike = None,
        aggregation: VariableAggregation | str = VariableAggregation.SUM,
        name: str | None = None,
    ) -> Variable:
        """Returns a new variable of the metric's state.

        Args:
            shape: Its shape.
            initializer: ``"zeros"``, ``"ones"``, an array or number, or a function of shape and dtype.
                It is the total over all replicas.
            dtype: Element type. Default: that of the metric.
            aggregation: How the replicas' values are combined when the result is computed.
            name: Its name, unique among the metric's variables.

        Raises:
            InvalidArgumentError: If the name is taken, or the initializer does not exist.
        """
        own_name = name or f"variable_{len(self._variables)}"
        if own_name in self._variables:
            raise InvalidArgumentError(
                f"Variables of a metric must have unique names, got {own_name!r} twice for metric "
                f"{self._name!r}. Rename one."
            )
        dtype = self._dtype if dtype is None else np.dtype(dtype)
        initial = _initial_value(initializer, tuple(shape), dtype)
        if isinstance(aggregation, str):
            aggregation = VariableAggregation[aggregation.upper()]
        with counting_once():
            variable: Variable = Variable(
                initial,
                trainable=False,
                name=f"{self._name}/{own_name}",
                synchronization=VariableSynchronization.ON_READ,
                aggregation=aggregation,
            )
        self._variables[own_name] = variable
        self._initial[own_name] = initial
        return variable

    def add_weight(
        self,
        shape: ShapeLike = (),
        initializer: Initializer = "zeros",
        dtype: DTypeLike = None,
        name: str | None = None,
        aggregation: VariableAggregation | str = VariableAggregation.SUM,
    ) -> Variable:
        """Same as ``add_variable``: Keras's older name, where the first argument may be the name."""
        if isinstance(shape, str):
            shape, name = (), shape
        if initializer is None:
            initializer = "zeros"
        return self.add_variable(shape, initializer, dtype, aggregation, name)

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the state and of the result."""
        return self._dtype

    @property
    def variables(self) -> list[Variable]:
        """The variables that hold the state."""
        return list(self._variables.values())

    @property
    def named_variables(self) -> dict[str, Variable]:
        """The variables that hold the state, by the names that a checkpoint gives them."""
        return dict(self._variables)

    def reset_state(self) -> None:
        """Resets the state to its initial values; call it at the start of an epoch."""
        for name, variable in self._variables.items():
            variable.assign(jnp.asarray(self._initial[name]))

    def reset_states(self) -> None:
        """Same as ``reset_state``, by its older name."""
        self.reset_state()

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> Any:
        """Calls ``update_state``, and returns the result over all updates so far."""
        self.update_state(*args, **kwargs)
        return self.result()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"

    def _strategy(self) -> StrategyProtocol:
        placed = (
            v.strategy for v in self._variables.values() if isinstance(v, DistributedVariable)
        )
        return next(placed, context.get_strategy())


def _run_in_replicas(update_state: Callable[..., None]) -> Callable[..., None]:
    """Makes ``update_state`` run in the replicas if it gets per-replica values in cross-replica context."""

    @functools.wraps(update_state)
    def update(self: Metric, *args: PyTree, **kwargs: PyTree) -> None:
        if any(
            isinstance(x, PerReplica) for x in structures.leaves_of((args, kwargs), is_value_leaf)
        ):
            self._strategy().run(functools.partial(update_state, self), args, kwargs)
        else:
            update_state(self, *args, **kwargs)

    return update


def _merged_over_replicas(result: Callable[[Metric], Any]) -> Callable[[Metric], Any]:
    """Makes ``result`` use the state of all replicas if it is called in one of them."""

    @functools.wraps(result)
    def of_all(self: Metric) -> Any:
        replica = context.get_replica_context()
        if replica is None or replica.num_replicas_in_sync == 1:
            return result(self)
        return replica.merge_call(lambda strategy: result(self))

    return of_all


def _initial_value(initializer: Initializer, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    if isinstance(initializer, str):
        if initializer not in _INITIALIZERS:
            raise InvalidArgumentError(
                f"initializer must be one of {sorted(_INITIALIZERS)}, an array or a function of shape and "
                f"dtype, got {initializer!r}."
            )
        initializer = _INITIALIZERS[initializer]
    value = initializer(shape, dtype=dtype) if callable(initializer) else initializer
    return np.broadcast_to(np.asarray(value, dtype), shape).copy()


def _snake_case(name: str) -> str:
    letters = [
        f"_{letter.lower()}"
        if letter.isupper() and index and not name[index - 1].isupper()
        else letter.lower()
        for index, letter in enumerate(name)
    ]
    return "".join(letters)
