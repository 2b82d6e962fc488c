"""``ServerUpdates``: applies an optimizer to variables on parameter servers."""

from __future__ import annotations

import itertools
import threading
import uuid
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import cloudpickle

from stratagem._src.core.errors import UnsupportedError
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.parameter_server.client.fencing import lineage_id
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.parameter_server.server.server_function import DENSE_FUNCTION, ROW_FUNCTION
from stratagem._src.parameter_server.server.server_optimizer import OptimizerFunction
from stratagem._src.training.gradient_pairs import gradient_arrays
from stratagem._src.training.optimizer_step import OptimizerStep
from stratagem._src.variables import frames, remote_batch
from stratagem._src.variables.updates import update_on_server

__all__ = ["ServerUpdates", "check_on_servers", "received"]

_Holder = TypeVar("_Holder")

_numbers = itertools.count()
_known: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_known_lock = threading.Lock()


class ServerUpdates:
    """Sends updates of an optimizer to parameter servers, which hold its state for their variables.

    Args:
        holder: The optimizer, referenced weakly: unpickling it in this process returns this object.
        original: Unique id of the optimizer. Default: a new one.
        identity: Name of the optimizer in all processes. Default: derived from its creation order.

    Attributes:
        original: As given.
        sent: Whether the optimizer itself has been sent to other processes.
    """

    def __init__(
        self, holder: object, original: str | None = None, identity: str | None = None
    ) -> None:
        self.original = uuid.uuid4().hex if original is None else original
        self.sent = identity is not None
        self._holder = weakref.ref(holder)
        self._number = next(_numbers) if identity is None else None
        self._identity = identity
        self._functions: dict[tuple[bool, ...] | bool | None, bytes] = {}

    @property
    def identity(self) -> str:
        """Name in all processes, also in a coordinator that takes over; set at first use."""
        with _known_lock:
            if self._identity is None:
                self._identity = f"{lineage_id()}/{self._number}"
                _known[self.original] = self._holder()
            return self._identity

    @property
    def begun(self) -> bool:
        """Whether servers or other processes may have its current settings."""
        return self.sent or bool(self._functions)

    def function(self, recipe: OptimizerStep) -> bytes:
        """Returns the serialized update rule for servers."""
        known = self._functions.get(recipe.decays)
        if known is None:
            known = cloudpickle.dumps(OptimizerFunction(self.identity, recipe.optax()))
            self._functions[recipe.decays] = known
        return known

    def send(
        self, gradients: Sequence[Any], variables: Sequence[RemoteVariable], recipe: OptimizerStep
    ) -> None:
        """Updates variables with their gradients."""
        updates = []
        for gradient, variable in zip(gradients, variables, strict=True):
            function = self.function(recipe.for_one_variable(variable))
            rows = isinstance(gradient, IndexedSlices)
            update = update_on_server(ROW_FUNCTION if rows else DENSE_FUNCTION, function)
            updates.append((variable, update, gradient_arrays(gradient, variable.dtype)))
        if frames.current_frame() is None:
            for variable, _, operand in updates:
                variable.check_not_tracing(operand)
            remote_batch.send(updates)
        else:
            for variable, update, operand in updates:
                variable.apply_update(update, operand)


def received(original: str, make: Callable[[], _Holder]) -> _Holder:
    """Returns this process's instance of an optimizer that another process sent.

    Args:
        original: Its unique id. Not its ``identity``: a coordinator that takes over has an optimizer with
            the same identity but possibly other settings.
        make: Creates the instance if there is none yet.
    """
    with _known_lock:
        optimizer: _Holder | None = _known.get(original)
        if optimizer is None:
            optimizer = make()
            _known[original] = optimizer
        return optimizer


def check_on_servers(recipe: OptimizerStep, *, all_variables: bool, shard_state: bool) -> None:
    """Checks that an optimizer can update variables on parameter servers.

    Args:
        recipe: Its update rule.
        all_variables: Whether all of its variables are on parameter servers.
        shard_state: Whether its state should be sharded over the replicas.

    Raises:
        UnsupportedError: If not.
    """
    if recipe.has_sums or recipe.loss_scale is not None:
        raise UnsupportedError(
            "gradient_accumulation_steps, error_feedback and loss_scale need state in synchronized "
            "replicas, but the variables are on parameter servers, whose workers run asynchronously. Leave "
            "them out."
        )
    if shard_state:
        raise UnsupportedError(
            "Optimizer(shard_state=True) shards state over replicas, but the variables and their state are "
            "on parameter servers. Leave it out."
        )
    if recipe.clipping and not all_variables:
        raise UnsupportedError(
            "Gradients of variables on parameter servers and of others cannot be clipped together. Use "
            "an Optimizer for each group."
        )
