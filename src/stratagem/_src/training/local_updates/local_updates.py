"""``LocalUpdates``: local SGD and DiLoCo: islands of synchronous workers that average periodically."""

from __future__ import annotations

import concurrent.futures
import json
import time
import types
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np

from stratagem._src.control_plane.island_server.island_messages import IslandPlace
from stratagem._src.core.errors import ContextError, InvalidArgumentError
from stratagem._src.core.types import ArrayLike, GradientTransformation, PyTree
from stratagem._src.current_strategy import context
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.strategies.base import Strategy
from stratagem._src.training.local_updates.island_client import IslandClient, Outcome
from stratagem._src.training.local_updates.island_workers import IslandWorkers
from stratagem._src.training.local_updates.keras_callback import make_callback
from stratagem._src.training.local_updates.outer_state import Array, OuterState
from stratagem._src.training.local_updates.outer_step import OuterStep
from stratagem._src.variables.foreign_variables import is_variable, register_trackable, variable_of
from stratagem._src.variables.variable import Variable, is_own_variable

__all__ = ["LocalUpdates"]


class LocalUpdates:
    """Trains loosely coupled islands, which average their parameters every ``sync_every`` steps.

    Known as local SGD, FedAvg or, with an outer optimizer, DiLoCo. An island is one job of synchronous
    workers, or a single process. ``stratagem run --islands 2 --workers 4`` starts two. Without islands a
    program is the only island, and runs the same outer steps alone.

    >>> import numpy as np, optax
    >>> import stratagem as sg
    >>> strategy = sg.distribute.OneDeviceStrategy("CPU:0")
    >>> with strategy.scope():
    ...     w = sg.Variable(np.zeros(2, np.float32))
    >>> islands = sg.distribute.experimental.LocalUpdates(
    ...     strategy, [w], sync_every=2, outer_optimizer=optax.sgd(0.5)
    ... )
    >>> with islands:
    ...     for _ in range(2):
    ...         _ = w.assign_add([1.0, 2.0])  # an inner step
    ...         islands.step()
    >>> np.asarray(w)  # half of the way that the inner steps went
    array([1., 2.], dtype=float32)

    Args:
        strategy: The strategy of this island.
        variables: The parameters: variables of the strategy, or a structure of them. With Keras they may be
            left out: ``keras_callback`` then takes the model's trainable variables.
        sync_every: Number of inner steps between outer steps; H in the literature.
        outer_optimizer: An optax gradient transformation, whose gradient is the difference between the last
            global parameters and the mean of the islands; ``None`` averages.
        overlap_steps: Number of inner steps that run while an outer step is in progress; 0 waits for it.
            The changes of these steps are added to its result.
        timeout_seconds: How long to wait for an island that is alive but does not contribute, for islands
            at the start, and for an unreachable server.
        island: The number of this island; default ``STRATAGEM_ISLAND``.
        num_islands: The number of islands; default ``STRATAGEM_ISLANDS``.
        server: ``host:port`` of the island server; default ``STRATAGEM_ISLANDS_SERVER``.

    Raises:
        InvalidArgumentError: If an argument is invalid.
        EnvironmentVariableError: If an environment variable is missing or invalid.
    """

    def __init__(
        self,
        strategy: Strategy,
        variables: PyTree = None,
        *,
        sync_every: int,
        outer_optimizer: GradientTransformation = None,
        overlap_steps: int = 0,
        timeout_seconds: float = 300.0,
        island: int | None = None,
        num_islands: int | None = None,
        server: str | None = None,
    ) -> None:
        _check_integer("sync_every", sync_every, 1, None)
        _check_integer("overlap_steps", overlap_steps, 0, sync_every)
        if timeout_seconds <= 0:
            raise InvalidArgumentError(f"timeout_seconds must be > 0, got {timeout_seconds}.")
        self._strategy = strategy
        self._sync_every = sync_every
        self._overlap_steps = overlap_steps
        self._timeout = float(timeout_seconds)
        self._place = _place(island, num_islands, server)
        self._outer_step = OuterStep(outer_optimizer)
        self._workers = IslandWorkers(strategy)
        self._variables: list[Any] = []
        self._client: IslandClient | None = None
        self._joined = False
        self._pending: _PendingRound | None = None
        self._num_steps = 0
        self._last_outer = 0
        self._steps_of_fits = 0
        self._seconds_waiting = 0.0
        if variables is not None:
            self._track(variables)

    # --- properties -----------------------------------------------------------------------------------

    @property
    def island(self) -> int:
        """The number of this island, from 0."""
        return self._place.island

    @property
    def num_islands(self) -> int:
        """Number of islands if none is lost."""
        return self._place.num_islands

    @property
    def num_steps(self) -> int:
        """Number of inner steps of this island; an island that returns adopts the others' number."""
        return self._num_steps

    @property
    def round(self) -> int:
        """Number of finished outer steps."""
        return self._state.round

    @property
    def sync_every(self) -> int:
        """Number of inner steps between outer steps."""
        return self._sync_every

    @property
    def metrics(self) -> dict[str, float]:
        """Cost of the outer steps: ``bytes_sent``, ``bytes_received``, ``seconds_waiting``, ``islands``.

        ``islands`` is the number of islands that contributed to the last outer step. Bytes count the arrays
        that this process sent to and received from other islands; only an island's leader does that.
        """
        client = self._client
        return {
            "bytes_sent": 0 if client is None else client.bytes_sent,
            "bytes_received": 0 if client is None else client.bytes_received,
            "seconds_waiting": self._seconds_waiting,
            "islands": self._last_outer,
        }

    # --- training loop --------------------------------------------------------------------------------

    def join(self) -> None:
        """Joins the other islands; all start with the same parameters.

        These are the parameters of the most advanced island, at the start those of island 0. Restore
        checkpoints before. Every worker of the island must call it.

        Raises:
            ContextError: If it has already joined, or there are no variables.
            UnavailableError, DeadlineExceededError: If others do not join in time; the message names them.
            InvalidArgumentError: If other islands have other variables or settings.
        """
        if self._joined:
            raise ContextError("join() must be called once before leave(), got a second call.")
        self._check_has_variables()
        context.require_cross_replica(self._strategy, "LocalUpdates.join()")
        self._read_back()
        if self._num_steps == 0:
            # Weights may have been loaded since this was created.
            self._set_state(self._outer_step.begin(self._values()))
        if self._place.server is not None and self._workers.leads:
            self._client = IslandClient(self._place, self._layout(), self._timeout)
        try:
            self._adopt_state(self._outcome_of(self._begin_join(), "joining"))
            self._joined = True
            if self._pending is not None:
                self._pending.future = self._begin_round(self._pending.sent)
        except BaseException:
            self._close()
            raise

    def step(self) -> None:
        """Counts an inner step, and runs an outer step every ``sync_every`` inner steps.

        Every worker of the island must call it after each training step.

        Raises:
            ContextError: If it has not joined, or a checkpoint was restored since.
            UnavailableError, DeadlineExceededError: If the island server is unreachable for longer than
                ``timeout_seconds``.
            InvalidArgumentError: If parameters are not finite at an outer step, or another process has
                joined with the number of this island.
        """
        self._check_joined()
        self._num_steps += 1
        self._steps_variable.assign(self._num_steps)
        if self._client is not None:
            self._client.hold(self._state, self._num_steps)
        if self._pending is not None and self._num_steps >= self._pending.due:
            self._finish_round()
        if self._num_steps % self._sync_every == 0:
            self._start_round(self._overlap_steps)

    def synchronize(self) -> None:
        """Runs an outer step now and waits for it; every island must call it at the same inner step."""
        self._check_joined()
        if self._pending is not None:
            self._finish_round()
        if self._num_steps != self._state.num_steps:
            self._start_round(0)

    def leave(self) -> None:
        """Leaves the other islands, after a last outer step with the inner steps since the previous one."""
        self._check_joined()
        try:
            self.synchronize()
            if self._client is not None:
                self._client.leave()
        finally:
            self._close()

    def __enter__(self) -> Self:
        self.join()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        if error is None and self._joined:
            self.leave()
        else:
            self._close()

    def keras_callback(self) -> Any:
        """Returns a callback for Keras ``fit`` that joins, counts batches as inner steps, and leaves.

        Training ends when ``num_steps`` reaches the number of batches of ``fit``, so an island that returns
        ends with the others.
        """
        return make_callback(self)

    def begin_fit(self, variables: PyTree, num_steps: int | None) -> int | None:
        """Joins, and returns the step at which a Keras ``fit`` of ``num_steps`` ends.

        ``keras_callback`` calls it. It tracks ``variables`` if none were given before.
        """
        if not self._variables:
            self._track(variables)
        if self._joined:
            # The previous ``fit`` ended with an exception or Ctrl-C, where Keras calls no callback.
            self._close()
        self.join()
        if num_steps is None:
            return None
        # Count requested steps, not finished ones: an island that returns adopts the others' steps.
        self._steps_of_fits += num_steps
        return self._steps_of_fits

    # --- outer steps ----------------------------------------------------------------------------------

    def _start_round(self, overlap_steps: int) -> None:
        if self._round_variable.value_on_host() != self._state.round:
            raise ContextError(
                "A checkpoint must be restored before join(), got an outer state that differs from the "
                "other islands'. Call leave(), restore, and join() again."
            )
        sent = self._values()
        self._check_finite(sent)
        self._pending = _PendingRound(self._num_steps + overlap_steps, self._num_steps, sent)
        if overlap_steps:
            for variable, value in zip(self._sent_variables, sent, strict=True):
                variable.assign(value)
            self._pending_variable.assign(self._num_steps)
        self._pending.future = self._begin_round(sent)
        if not overlap_steps:
            self._finish_round()

    def _check_finite(self, sent: Sequence[Array]) -> None:
        """Rejects non-finite parameters, which would make the parameters of all islands NaN."""
        for leaf, value in zip(self._variables, sent, strict=True):
            if not np.isfinite(value).all():
                raise InvalidArgumentError(
                    "Parameters must be finite at an outer step, got NaN or infinity in "
                    f"{variable_of(leaf).name!r} of island {self.island} at step {self._num_steps}. They "
                    "were not sent to other islands. Restore a checkpoint, and lower the learning rate or "
                    "clip gradients."
                )

    def _begin_round(self, sent: list[Array]) -> concurrent.futures.Future[Outcome]:
        client, state = self._client, self._state
        if client is None:
            return self._workers.begin(lambda: Outcome("mean", 1, arrays=tuple(sent)))

        def run_round() -> Outcome:
            return client.run_round(state.round, sent)

        return self._workers.begin(run_round)

    def _begin_join(self) -> concurrent.futures.Future[Outcome]:
        client = self._client
        if client is None:
            return self._workers.begin(lambda: Outcome("go"))
        client.hold(self._state, self._num_steps)
        return self._workers.begin(client.join)

    def _outcome_of(self, future: concurrent.futures.Future[Outcome], what: str) -> Outcome:
        started = time.monotonic()
        client = self._client
        outcome = self._workers.agree(
            future, what, lambda: "others" if client is None else client.waits_for
        )
        self._seconds_waiting += time.monotonic() - started
        return outcome

    def _finish_round(self) -> None:
        """Waits for the pending outer step and applies its result."""
        pending = self._pending
        assert pending is not None
        outcome = self._outcome_of(pending.future, f"outer step {self._state.round}")
        self._pending = None
        if outcome.kind == "mean":
            self._last_outer = outcome.num_islands
            state = self._outer_step.take(self._state, outcome.arrays, pending.started_at)
            if pending.due > pending.started_at:
                now = self._values()
                moved = _plus_difference(list(state.parameters), now, pending.sent)
                self._assign([np.asarray(value) for value in moved])
            else:
                self._assign(state.parameters)
            self._set_state(state)
        else:
            self._adopt_state(outcome)

    def _adopt_state(self, outcome: Outcome) -> None:
        """Adopts the state of the other islands, if the outcome carries one."""
        if outcome.kind != "state":
            return
        self._pending = None
        self._num_steps = outcome.num_steps
        self._steps_variable.assign(self._num_steps)
        state = self._state.with_arrays(outcome.round, outcome.num_steps, outcome.arrays)
        self._assign(state.parameters)
        self._set_state(state)

    # --- state ----------------------------------------------------------------------------------------

    def _track(self, variables: PyTree) -> None:
        leaves = jax.tree.leaves(variables, is_leaf=is_variable)
        _check_variables(leaves, [variable_of(leaf) for leaf in leaves])
        self._variables = leaves
        self._state = self._outer_step.begin(self._values())

        def own(value: ArrayLike, name: str) -> Variable:
            return Variable(value, trainable=False, name=f"islands_{name}")

        with self._strategy.scope():
            self._steps_variable = own(np.int32(0), "num_steps")
            self._round_variable = own(np.int32(0), "round")
            self._outer_steps_variable = own(np.int32(0), "outer_num_steps")
            self._pending_variable = own(np.int32(-1), "under_way_since")
            self._global_variables = [own(v, "global") for v in self._state.parameters]
            self._optimizer_variables = [own(v, "outer_optimizer") for v in self._state.optimizer]
            self._sent_variables = [
                own(np.zeros_like(v), "sent") for v in self._state.parameters if self._overlap_steps
            ]

    def _set_state(self, state: OuterState) -> None:
        self._state = state
        if self._client is not None:
            self._client.hold(state, self._num_steps)
        variables = [*self._global_variables, *self._optimizer_variables]
        for variable, value in zip(variables, state.arrays, strict=True):
            variable.assign(value)
        self._round_variable.assign(state.round)
        self._outer_steps_variable.assign(state.num_steps)
        self._pending_variable.assign(-1)

    def _read_back(self) -> None:
        """Reads the state back from the variables, into which a checkpoint may have been restored."""
        held = [v.value_on_host() for v in (*self._global_variables, *self._optimizer_variables)]
        self._num_steps = int(self._steps_variable.value_on_host())
        self._state = self._state.with_arrays(
            int(self._round_variable.value_on_host()),
            int(self._outer_steps_variable.value_on_host()),
            tuple(np.array(value) for value in held),
        )
        started_at = int(self._pending_variable.value_on_host())
        self._pending = None
        if started_at >= 0:
            sent = [np.array(variable.value_on_host()) for variable in self._sent_variables]
            self._pending = _PendingRound(started_at + self._overlap_steps, started_at, sent)

    def _values(self) -> list[Array]:
        # Copies: the next step donates the memory of the variables.
        # Looked up each time: while Keras trains, its variables materialize their values only on access.
        return [np.array(variable_of(leaf).value_on_host()) for leaf in self._variables]

    def _assign(self, values: Sequence[Array]) -> None:
        for leaf, value in zip(self._variables, values, strict=True):
            variable_of(leaf).assign(value)

    def _held_variables(self) -> Mapping[str, Any]:
        self._check_has_variables()
        return {
            "num_steps": self._steps_variable,
            "round": self._round_variable,
            "outer_num_steps": self._outer_steps_variable,
            "under_way_since": self._pending_variable,
            "global": self._global_variables,
            "outer_optimizer": self._optimizer_variables,
            "sent": self._sent_variables,
        }

    def _layout(self) -> str:
        parameters = [f"{value.dtype.name}{list(value.shape)}" for value in self._state.parameters]
        layout = {
            "variables": len(parameters),
            "shapes": _short(parameters),
            "outer_optimizer": self._outer_step.signature(self._state.parameters),
            "sync_every": self._sync_every,
            "overlap_steps": self._overlap_steps,
        }
        return json.dumps(layout)

    def _check_has_variables(self) -> None:
        if not self._variables:
            raise ContextError(
                "LocalUpdates needs its variables before join() and before it is part of a Checkpoint, got "
                "none. Pass them to LocalUpdates, or use keras_callback()."
            )

    def _check_joined(self) -> None:
        if not self._joined:
            raise ContextError(
                "Outer steps run between join() and leave(), got a call outside. Use 'with islands:' "
                "around the training loop."
            )

    def _close(self) -> None:
        self._joined = False
        self._pending = None
        if self._client is not None:
            self._client.close()


class _PendingRound:
    """A pending outer step.

    Attributes:
        due: The inner step at which its result is applied.
        started_at: The inner step at which it started.
        sent: The parameters that were sent.
        future: Its outcome.
    """

    def __init__(self, due: int, started_at: int, sent: list[Array]) -> None:
        self.due = due
        self.started_at = started_at
        self.sent = sent
        self.future: concurrent.futures.Future[Outcome] = concurrent.futures.Future()


@jax.jit
def _plus_difference(base: list[Any], now: list[Any], before: list[Any]) -> list[Any]:
    return [b + (n - s) for b, n, s in zip(base, now, before, strict=True)]


def _place(island: int | None, num_islands: int | None, server: str | None) -> IslandPlace:
    given = (island, num_islands, server)
    if all(value is None for value in given):
        return IslandPlace.from_environment()
    if island is None or num_islands is None or server is None:
        raise InvalidArgumentError(
            "island, num_islands and server must be given together, or not at all to use the environment, "
            f"got island={island}, num_islands={num_islands}, server={server!r}."
        )
    _check_integer("num_islands", num_islands, 1, None)
    _check_integer("island", island, 0, num_islands - 1)
    return IslandPlace(island, num_islands, server)


def _check_integer(name: str, value: int, minimum: int, maximum: int | None) -> None:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or value < minimum or (maximum is not None and value > maximum):
        limits = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise InvalidArgumentError(f"{name} must be an integer, {limits}, got {value!r}.")


def _check_variables(leaves: Sequence[Any], variables: Sequence[Any]) -> None:
    for leaf, variable in zip(leaves, variables, strict=True):
        if not is_own_variable(variable) or isinstance(variable, RemoteVariable):
            raise InvalidArgumentError(
                "LocalUpdates averages variables of this island's own strategy, got "
                f"{type(leaf).__name__}. Parameter servers are asynchronous already."
            )
        if not jax.numpy.issubdtype(variable.dtype, np.floating):
            raise InvalidArgumentError(
                f"LocalUpdates averages variables of floating types, got {variable.name!r} of "
                f"{np.dtype(variable.dtype).name}. Leave it out."
            )
    if not variables:
        raise InvalidArgumentError("LocalUpdates needs at least one variable, got none.")


def _short(texts: list[str]) -> str:
    shown = ", ".join(texts[:4])
    rest = f", ... (checksum {zlib.crc32(','.join(texts).encode()):08x})" if len(texts) > 4 else ""
    return shown + rest


register_trackable(LocalUpdates, LocalUpdates._held_variables)
