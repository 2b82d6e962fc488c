"""``Checkpoint``: saves variables, optimizers and more, and restores them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from stratagem._src.checkpoint.async_save import AsyncSave
from stratagem._src.checkpoint.collective_commit import CollectiveCommit
from stratagem._src.checkpoint.format.checkpoint_path import CheckpointPath, checkpoint_path
from stratagem._src.checkpoint.format.reader import open_checkpoint
from stratagem._src.checkpoint.format.saved_state import SavedCheckpoint
from stratagem._src.checkpoint.format.tree_metadata import array_key
from stratagem._src.checkpoint.objects import (
    COUNTER,
    CheckpointObjects,
    Keys,
    is_object,
    named_objects,
)
from stratagem._src.checkpoint.optimizer_saving import (
    known_variables,
    local_values,
    remote_arrays,
)
from stratagem._src.checkpoint.options import CheckpointOptions
from stratagem._src.checkpoint.restore_status import RestoreStatus
from stratagem._src.checkpoint.restoring import report_restored, stage_all
from stratagem._src.checkpoint.saved_values import Change, IteratorPosition, SavedValue
from stratagem._src.checkpoint.saving import Contents, Target, prepare_save
from stratagem._src.checkpoint.tensorflow.locations import is_tensorflow_checkpoint
from stratagem._src.checkpoint.tensorflow.matched_checkpoint import MatchedCheckpoint
from stratagem._src.core.errors import ContextError, InvalidArgumentError
from stratagem._src.core.types import PyTree
from stratagem._src.current_strategy import context
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.jax_compat.tracing import under_jit
from stratagem._src.parameter_server.client.remote_arrays import RemoteArray, VariableArray
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.process.signal_handlers import in_signal_handler
from stratagem._src.training.elastic.elastic_loop import warn_of_missing_loop
from stratagem._src.variables import frames, transactions
from stratagem._src.variables.variable import Variable, create_plain_variable

__all__ = ["Checkpoint"]

_MAX_SHOWN = 3


class Checkpoint:
    """Saves and restores variables, optimizers, iterators and other state of a program.

    A checkpoint is a directory in the Orbax format: other JAX tools read it, and checkpoints that Orbax
    wrote are restored like our own. It is independent of the sharding: a checkpoint of variables on two
    parameter servers can be restored onto three, into other shards, or into a mirrored variable.

    ``save`` takes a snapshot of the values and returns; they are written in the background. A checkpoint
    gets its name when it is complete (atomic rename), so an interrupted save does not affect earlier ones.

    With several data-parallel workers, all of them call ``restore``, and ``save`` too, with a path on a
    shared file system. Each writes a share of the common values, and its own values. The leader can also
    save alone, unless a value is sharded over the workers. Parameter servers write and read their own
    variables: they must see the path, too.

    Args:
        root: An object that has no name of its own, and is called ``"root"``: of a TensorFlow checkpoint it
            gets what was saved as the root, such as the model of a SavedModel.
        **objects: Variables, ``Optimizer`` objects, metrics, iterators of datasets, the loop of an elastic
            function, Keras layers, models, optimizers and metrics, objects of ``flax.nnx``, arrays, Python
            numbers, other Checkpoints, or structures of them, by name. Keras objects must be built before
            they are saved; an unbuilt one is restored when it is built. Optimizer state on parameter
            servers is saved for the variables given here. The objects are also attributes of the
            Checkpoint, and more can be assigned: ``checkpoint.epoch = 3``. Arrays and numbers are replaced
            when they are restored: read them from the Checkpoint.

    Raises:
        InvalidArgumentError: If an object is of another kind, two have the same name, or a Checkpoint
            contains itself.

    >>> import tempfile
    >>> import stratagem as sg
    >>> w = sg.Variable([1.0, 2.0])
    >>> checkpoint = sg.train.Checkpoint(model={"w": w}, epoch=3)
    >>> path = checkpoint.save(tempfile.mkdtemp() + "/ckpt")
    >>> _ = w.assign([0.0, 0.0])
    >>> checkpoint.epoch = 4
    >>> status = checkpoint.restore(path).assert_consumed()
    >>> w.numpy(), checkpoint.epoch
    (array([1., 2.], dtype=float32), 3)
    """

    _given: Mapping[str, Any]
    _objects: CheckpointObjects
    _count: int
    _counter: Variable | None
    _last: AsyncSave | None

    def __init__(self, root: PyTree = None, **objects: PyTree) -> None:
        self._count = 0
        self._counter = None
        self._last = None
        self._take(objects if root is None else {"root": root, **objects}, allows_unbuilt=True)

    def _take(self, given: Mapping[str, Any], *, allows_unbuilt: bool = False) -> None:
        found = named_objects(_expanded(given, [self]), allows_unbuilt=allows_unbuilt)
        self._given = dict(given)
        self._objects = found
        for name, variable in found.variables.items():
            variable.take_name(name)

    def _put(self, restored: Mapping[str, Any]) -> None:
        """Takes the restored arrays and numbers, also in Checkpoints that this one contains."""
        structure: Any
        leaves, structure = jax.tree.flatten(self._given, is_leaf=_is_part)
        values = structure.flatten_up_to(restored)
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Checkpoint):
                leaf._put(values[place])
                values[place] = leaf
        self._take(jax.tree.unflatten(structure, values), allows_unbuilt=True)

    def __getattr__(self, name: str) -> Any:
        given = self.__dict__.get("_given", {})
        if name in given:
            return given[name]
        raise AttributeError(f"Checkpoint has no attribute {name!r}. It holds {sorted(given)}.")

    def __setattr__(self, name: str, value: PyTree) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
            return
        if hasattr(type(self), name):
            raise AttributeError(f"{name!r} of a Checkpoint cannot be replaced. Rename the object.")
        self._take({**self._given, name: value}, allows_unbuilt=True)

    @property
    def save_counter(self) -> Variable:
        """The number of the last checkpoint that was saved or restored."""
        if self._counter is None:
            self._counter = create_plain_variable(self._count, trainable=False, name=COUNTER)
        return self._counter

    def _set_count(self, number: int) -> None:
        # The variable is created on first use only, because that initializes the JAX backend.
        self._count = number
        if self._counter is not None:
            self._counter.assign(number)

    # --- saving ---------------------------------------------------------------------------------------

    def save(
        self, file_prefix: str | os.PathLike[str], options: CheckpointOptions | None = None
    ) -> str:
        """Saves everything in a new directory, ``{file_prefix}-{number}``.

        The number is one above ``save_counter`` and above existing checkpoints. Leftovers of killed saves
        in the directory are removed.

        The next method call of this Checkpoint, such as ``sync``, raises an error of writing. If there is
        none, the program exits with a non-zero code.

        Returns:
            The path of the directory; the same on all workers that pass the same prefix.

        Raises:
            ContextError: In a replica or a compiled function.
        """
        return self._save(Target(checkpoint_path(file_prefix), after=self._saves_so_far()), options)

    def write(
        self, file_prefix: str | os.PathLike[str], options: CheckpointOptions | None = None
    ) -> str:
        """Saves everything in a directory with exactly this path; replaces an existing one.

        It does not change ``save_counter``, nor save it. See ``save``.
        """
        return self._save(Target(checkpoint_path(file_prefix), is_exact=True), options)

    def save_numbered(
        self,
        prefix: CheckpointPath,
        number: int | None,
        options: CheckpointOptions | None,
        then: Callable[[], None],
    ) -> str:
        """Saves like ``save``, with an explicit number and a callback.

        Args:
            prefix: The path without its number.
            number: The number; ``None`` for the next.
            options: See ``save``.
            then: Called by the first worker when the checkpoint is complete.
        """
        return self._save(Target(prefix, number, self._saves_so_far()), options, then)

    def _saves_so_far(self) -> int:
        return self._count if self._counter is None else int(self._counter)

    def _save(
        self,
        target: Target,
        options: CheckpointOptions | None,
        then: Callable[[], None] = lambda: None,
    ) -> str:
        if (frames.current_frame() is not None or under_jit()) and in_signal_handler():
            # The handler interrupts a trace, which must not notice the save.
            return frames.call_outside(
                lambda: evaluate_now(lambda: self._save_here(target, options, then))
            )
        _check_context("save")
        return self._save_here(target, options, then)

    def _save_here(
        self, target: Target, options: CheckpointOptions | None, then: Callable[[], None]
    ) -> str:
        _check_not_interrupting()
        self._take(self._given)
        warn_of_missing_loop(self._given)
        self.sync()
        commit = self._commit_for_save(target)
        undo: list[Callable[[], None]] = []
        save: AsyncSave | None = None
        try:
            save, number = prepare_save(target, self._contents, commit, then, undo)
            if number is not None:
                self._set_count(number)
            self._last = save
            save.start()
        except BaseException:
            # An interrupt (Ctrl-C) before the start would leave the path locked.
            if save is not None:
                save.abandon()
            else:
                for undo_one in undo:
                    undo_one()
            raise
        if options is not None and not options.enable_async:
            self.sync()
        return str(target.prefix.with_name(save.path.name))

    def sync(self) -> None:
        """Waits until the last save is on disk.

        Raises:
            OSError: If it could not be written.
            UnavailableError: If another worker was lost before all had written their shares.
        """
        if self._last is not None:
            self._last.wait()
            self._last.check()

    # --- restoring ------------------------------------------------------------------------------------

    def restore(
        self,
        save_path: str | os.PathLike[str] | None,
        options: CheckpointOptions | None = None,
    ) -> RestoreStatus:
        """Restores all objects, and ``save_counter``, from a checkpoint.

        With ``None``, which ``latest_checkpoint`` returns on the first start, nothing changes.

        Arrays in the checkpoint that no object matches are ignored. Everything is checked first, on all
        workers and servers: if this raises one of the following errors, nothing has changed. The state of
        an optimizer that has not taken a step yet is checked as far as its variables are known, otherwise
        at its first step. The variables that an unbuilt Keras object has already, such as an optimizer's
        iterations and learning rate, are restored with everything else, and the others on its first call
        or step.

        Args:
            save_path: A path that ``save`` returned; a directory that Orbax wrote; one in our format
                before Orbax; or a checkpoint of TensorFlow: the prefix of its files, a SavedModel's
                directory, or an ``.h5`` file with the weights of a Keras 2 model.
            options: Accepted for compatibility with TensorFlow.

        Returns:
            A status with ``assert_consumed()``.

        Raises:
            NotFoundError: If there is no checkpoint, or an object is missing in it.
            InvalidArgumentError: If a shape or dtype differs, or an optimizer's state is that of another
                optimizer.
            DataLossError: If a file is corrupt.
            PSUnavailableError: If a parameter server is lost. If it is lost during the transfer of values,
                some have changed.
            ContextError: In a replica or a compiled function.
        """
        return self._restore(save_path, with_counter=True)

    def read(
        self,
        save_path: str | os.PathLike[str] | None,
        options: CheckpointOptions | None = None,
    ) -> RestoreStatus:
        """Restores like ``restore``, except for ``save_counter``."""
        return self._restore(save_path, with_counter=False)

    def _restore(
        self, save_path: str | os.PathLike[str] | None, *, with_counter: bool
    ) -> RestoreStatus:
        _check_context("restore")
        _check_not_interrupting()
        began = time.monotonic()
        self._take(self._given, allows_unbuilt=True)
        self.sync()
        commit = self._commit("restoring a checkpoint")
        changes: list[Change] = []
        statuses: list[RestoreStatus] = []

        def check() -> int | None:
            if save_path is None:
                return None
            path = checkpoint_path(save_path)
            saved: SavedCheckpoint
            objects = self._objects
            if isinstance(path, Path) and is_tensorflow_checkpoint(path):
                given = _expanded(self._given, [self])
                saved = matched = MatchedCheckpoint(path, given, objects)
                objects = matched.objects
            else:
                saved = open_checkpoint(path, commit.worker)
            staged = stage_all(objects, saved, path, commit.num_workers)
            changes.extend(staged.changes)
            statuses.append(RestoreStatus(staged.unused, staged.deferred))
            if with_counter and COUNTER in saved.names:
                number = int(saved.array(COUNTER).read())
                changes.append(lambda: self._set_count(number))
            return saved.fingerprint

        fingerprints = commit.run_on_all(check)
        if len(set(fingerprints)) > 1:
            raise InvalidArgumentError(
                f"All workers must restore the same checkpoint, but the content of {save_path} differs "
                "between them. Use a path on a shared file system."
            )
        changes.reverse()

        def change_all() -> None:
            while changes:
                changes.pop()()  # pop frees the memory of the values it has read

        thread = threading.get_ident()
        try:
            _restoring.add(thread)
            # Atomically: no other thread sees a mix of restored and old variables.
            transactions.atomically(lambda _: change_all())
        finally:
            # A single C call: an interrupt cannot come before it takes effect. A Python call here would
            # let one in, and leave the thread marked as restoring.
            _restoring.discard(thread)
            self._put(self._objects.structure())
        if save_path is not None:
            for value in self._objects.plain.values():
                if isinstance(value, IteratorPosition):
                    value.note_restored(self._variables_here)
            if commit.worker == 0:
                report_restored(save_path, time.monotonic() - began)
        return statuses[0] if statuses else RestoreStatus(None)

    # --- contents -----------------------------------------------------------------------------------

    def _commit_for_save(self, target: Target) -> CollectiveCommit:
        """Returns the commit of all workers, or of this worker alone if the others do not save."""
        collective = self._collective_names()
        if collective:
            shown = ", ".join(map(repr, collective[:_MAX_SHOWN]))
            return self._commit(
                f"saving a checkpoint (every worker must call save(), even if should_checkpoint is false, "
                f"because {shown} is sharded over the workers)"
            )
        commit = self._commit("saving a checkpoint")
        commit.detach_unless_all_arrive(str(target.prefix.absolute()))
        return commit

    def _collective_names(self) -> list[str]:
        """Returns the names of the values that no worker can save alone."""
        objects = self._objects
        values = {**objects.local}
        for name in objects.optimizers:
            values |= {array_key(keys): v for keys, v in local_values(name, objects).items()}
        return [
            name
            for name, value in values.items()
            if value.is_read_collectively
            or (isinstance(value, IteratorPosition) and value.is_distributed)
        ]

    def _commit(self, what: str) -> CollectiveCommit:
        plain = self._objects.plain.values()
        distributed = any(isinstance(v, IteratorPosition) and v.is_distributed for v in plain)
        return CollectiveCommit(self._local_variables(), what, together=distributed)

    def _local_variables(self) -> Iterator[Variable]:
        yield from self._objects.variables.values()
        for optimizer in self._objects.optimizers.values():
            yield from optimizer.variables

    def _variables_here(self) -> Iterator[Variable]:
        for variable in self._local_variables():
            if not isinstance(variable, RemoteVariable):
                yield variable

    def _contents(self) -> Contents:
        # Collect again: another thread may have started to train a Keras model meanwhile.
        self._take(self._given)
        objects = self._objects
        values: dict[Keys, SavedValue] = {
            objects.keys[name]: value for name, value in objects.local.items()
        }
        remote: dict[Keys, RemoteArray] = {
            objects.keys[name]: VariableArray(variable) for name, variable in objects.remote.items()
        }
        for name in objects.optimizers:
            values.update(local_values(name, objects))
            remote.update(remote_arrays(name, objects))
        optimizers = {name: known_variables(name, objects) for name in objects.optimizers}
        is_behind = any(variable.expects_value for variable in objects.variables.values())
        return Contents(values, remote, {"optimizers": optimizers}, is_behind)


def _is_part(value: PyTree) -> bool:
    return isinstance(value, Checkpoint) or is_object(value)


def _expanded(given: Mapping[str, Any], within: list[Checkpoint]) -> dict[str, Any]:
    """Returns objects with a dictionary of its objects in place of each Checkpoint."""

    def expand(value: PyTree) -> PyTree:
        if not isinstance(value, Checkpoint):
            return value
        if any(value is outer for outer in within):
            raise InvalidArgumentError(
                f"A Checkpoint cannot contain itself, got one that holds {sorted(value._given)} inside "
                "itself. Pass the objects that it holds instead."
            )
        return _expanded(value._given, [*within, value])

    return {name: jax.tree.map(expand, one, is_leaf=_is_part) for name, one in given.items()}


_restoring: set[int] = set()
"""Ids of threads that are inside ``restore`` and changing values."""


def _check_not_interrupting() -> None:
    """Raises in a signal handler that interrupts ``restore``: the state is half restored."""
    if threading.get_ident() in _restoring:
        raise ContextError(
            "A signal handler cannot save or restore a Checkpoint while it interrupts Checkpoint.restore() "
            "in the same thread: only some variables are restored. Set a flag in the handler, and check "
            "the flag in the training loop."
        )


def _check_context(what: str) -> None:
    replica = context.get_replica_context() if context.has_strategy() else None
    in_replica = replica is not None and replica.num_replicas_in_sync > 1
    if in_replica or frames.current_frame() is not None or under_jit():
        raise ContextError(
            f"Checkpoint.{what}() cannot be called in a replica or a compiled function. Call it outside of "
            "strategy.run(), sg.function and JAX transformations."
        )
