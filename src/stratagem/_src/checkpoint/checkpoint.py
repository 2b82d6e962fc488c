"""``Checkpoint``: saves variables, optimizers and more, and restores them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stratagem._src.checkpoint.async_save import SaveUnderWay
from stratagem._src.checkpoint.collective_commit import WorkerAgreement
from stratagem._src.checkpoint.format.reader import open_checkpoint
from stratagem._src.checkpoint.format.tree_metadata import array_key
from stratagem._src.checkpoint.objects import COUNTER, CheckpointObjects, Keys, named_objects
from stratagem._src.checkpoint.optimizer_saving import (
    known_variables,
    local_values,
    remote_arrays,
)
from stratagem._src.checkpoint.options import CheckpointOptions
from stratagem._src.checkpoint.restore_status import RestoreStatus
from stratagem._src.checkpoint.restoring import stage_all
from stratagem._src.checkpoint.saved_values import Change, IteratorPlace, SavedValue
from stratagem._src.checkpoint.saving import Contents, Target, begin_save
from stratagem._src.core.errors import ContextError, InvalidArgumentError
from stratagem._src.current_strategy import context
from stratagem._src.jax_compat.tracing import under_jit
from stratagem._src.parameter_server.client.remote_arrays import RemoteArray, WholeVariable
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.variables import access as state
from stratagem._src.variables.variable import Variable, create_plain_variable

__all__ = ["Checkpoint"]

_MAX_SHOWN = 3


class Checkpoint:
    """Saves what a program would lose at its end, and restores it.

    A checkpoint is a directory in Orbax' format, which other JAX tools read, too; and what they have
    saved is restored like one of our own. It does not say how variables are spread: what was saved from
    two parameter servers can be restored into three, into other shards, or into a mirrored variable.

    ``save`` takes the values and returns; they are written while the program goes on. A checkpoint
    appears under its name when it is complete: a save that is interrupted leaves the last one as it was.

    Where several workers train in step all of them call ``restore``, and ``save`` too, with a path that
    all of them see. Each writes a part of what they have in common, and what is its own. The leader can
    also save alone, unless each worker has a part of a value. What is on parameter
    servers they write and read themselves: they must see the path, too.

    Args:
        **objects: Variables, ``Optimizer`` objects, metrics, iterators of datasets, the loop of an elastic
            function, Keras layers, models, optimizers and metrics, objects of ``flax.nnx``, arrays, Python
            numbers, or structures of them, by name. Keras objects must be built before they are saved; what
            is restored into one that is not, it gets when it is built. The state that an optimizer has on
            parameter servers is saved for the variables given here. They are attributes of the Checkpoint,
            too, and more can be assigned: ``checkpoint.epoch = 3``. Arrays and numbers are replaced when
            they are restored: read them from the Checkpoint.

    Raises:
        InvalidArgumentError: If something else is given, or two have the same name.

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
    _last: SaveUnderWay | None

    def __init__(self, **objects: Any) -> None:
        self._count = 0
        self._counter = None
        self._last = None
        self._take(objects, allows_unbuilt=True)

    def _take(self, given: Mapping[str, Any], *, allows_unbuilt: bool = False) -> None:
        found = named_objects(given, allows_unbuilt=allows_unbuilt)
        self._given = dict(given)
        self._objects = found
        for name, variable in found.variables.items():
            variable.take_name(name)

    def __getattr__(self, name: str) -> Any:
        given = self.__dict__.get("_given", {})
        if name in given:
            return given[name]
        raise AttributeError(f"Checkpoint has no attribute {name!r}. It holds {sorted(given)}.")

    def __setattr__(self, name: str, value: Any) -> None:
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
        # Without a variable, unless somebody asks for it: that would start JAX.
        self._count = number
        if self._counter is not None:
            self._counter.assign(number)

    # --- saving ---------------------------------------------------------------------------------------

    def save(
        self, file_prefix: str | os.PathLike[str], options: CheckpointOptions | None = None
    ) -> str:
        """Saves everything in a new directory, ``file_prefix`` with a number behind it.

        The number is one above ``save_counter``, or above those of the checkpoints there are. What saves
        that were killed have left behind in the directory is removed.

        An error of the disk comes at the next call of a method of this Checkpoint, ``sync`` for one. If
        there is none, the program ends with another exit code than 0.

        Returns:
            The path of the directory; the same on all workers that give the same prefix.

        Raises:
            ContextError: In a replica or a compiled function.
        """
        return self._save(Target(Path(file_prefix), after=self._saves_so_far()), options)

    def write(
        self, file_prefix: str | os.PathLike[str], options: CheckpointOptions | None = None
    ) -> str:
        """Saves everything in a directory with exactly this path, in place of one that is there.

        Neither is it counted, nor is the count saved. See ``save``.
        """
        return self._save(Target(Path(file_prefix), is_exact=True), options)

    def save_numbered(
        self,
        prefix: Path,
        number: int | None,
        options: CheckpointOptions | None,
        then: Callable[[], None],
    ) -> str:
        """Does what ``save`` does.

        Args:
            prefix: The path without its number.
            number: The number; ``None`` for the next.
            options: See ``save``.
            then: Called, by the first worker alone, when the checkpoint is complete.
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
        _check_context("save")
        _check_not_interrupting()
        self._take(self._given)
        self.sync()
        agreement = self._agreement_to_save(target)
        save, number = begin_save(target, self._contents, agreement, then)
        if number is not None:
            self._set_count(number)
        self._last = save
        save.start()
        if options is not None and not options.enable_async:
            self.sync()
        return str(target.prefix.with_name(save.path.name))

    def sync(self) -> None:
        """Waits until the last save is on the disk.

        Raises:
            OSError: If it could not be written.
            UnavailableError: If another worker was lost before all had written their parts.
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
        """Gives everything the value that it had when the checkpoint was saved, ``save_counter`` too.

        With ``None``, as ``latest_checkpoint`` returns at the first start, everything stays as it is.

        Arrays of the checkpoint that nothing here asks for are left out. Everything is checked first, on
        all workers and servers: if this raises one of the following, nothing has changed anywhere. The
        state of an optimizer that has not taken a step yet is checked as far as its variables are known,
        and otherwise at its first step. A Keras object that is not built yet gets its values when it is
        first called, or takes its first step, and is checked then.

        Args:
            save_path: What ``save`` has returned; a directory that Orbax has written; or one that we have
                written before our format was Orbax'.
            options: Taken for the sake of programs for TensorFlow.

        Returns:
            What ``assert_consumed()`` can be asked of.

        Raises:
            NotFoundError: If there is no checkpoint, or it lacks something.
            InvalidArgumentError: If a shape or element type differs, or an optimizer's state is that of
                another optimizer.
            DataLossError: If a file is damaged.
            PSUnavailableError: If a parameter server is gone. If it is lost while values are on their way,
                some have changed.
            ContextError: In a replica or a compiled function.
        """
        return self._restore(save_path, with_counter=True)

    def read(
        self,
        save_path: str | os.PathLike[str] | None,
        options: CheckpointOptions | None = None,
    ) -> RestoreStatus:
        """Does what ``restore`` does, except that ``save_counter`` stays as it is."""
        return self._restore(save_path, with_counter=False)

    def _restore(
        self, save_path: str | os.PathLike[str] | None, *, with_counter: bool
    ) -> RestoreStatus:
        _check_context("restore")
        _check_not_interrupting()
        self._take(self._given, allows_unbuilt=True)
        self.sync()
        agreement = self._agreement("restoring a checkpoint")
        changes: list[Change] = []
        left: list[str] = []

        def check() -> int | None:
            if save_path is None:
                return None
            path = Path(save_path)
            saved = open_checkpoint(path, agreement.worker)
            staged, unused = stage_all(self._objects, saved, path, agreement.num_workers)
            changes.extend(staged)
            left.extend(unused)
            if with_counter and COUNTER in saved.names:
                number = int(saved.array(COUNTER).whole())
                changes.append(lambda: self._set_count(number))
            return saved.fingerprint

        fingerprints = agreement.settle(check)
        if len(set(fingerprints)) > 1:
            raise InvalidArgumentError(
                f"All workers must restore the same checkpoint, but what they find at {save_path} differs. "
                "Give them the path of a directory that all of them see."
            )
        changes.reverse()

        def change_all() -> None:
            while changes:
                changes.pop()()  # and with it goes the memory for what it has read

        thread = threading.get_ident()
        try:
            _restoring.add(thread)
            # As one call: no other thread sees some of the variables restored and others not.
            state.atomically(lambda _: change_all())
        finally:
            # One call into C, before which no interrupt comes: another call in it would let one in.
            _restoring.discard(thread)
            self._take(self._objects.structure(), allows_unbuilt=True)
        if save_path is not None:
            for value in self._objects.plain.values():
                if isinstance(value, IteratorPlace):
                    value.note_restored(self._variables_here)
        return RestoreStatus(None if save_path is None else left)

    # --- what there is to save ----------------------------------------------------------------------

    def _agreement_to_save(self, target: Target) -> WorkerAgreement:
        """Returns what ties the workers together; nothing, if this one saves alone, and can."""
        held_by_all = self._held_by_all()
        if held_by_all:
            shown = ", ".join(map(repr, held_by_all[:_MAX_SHOWN]))
            return self._agreement(
                f"saving a checkpoint (every worker calls save(), also those where should_checkpoint is "
                f"false, because each of them has a part of {shown})"
            )
        agreement = self._agreement("saving a checkpoint")
        agreement.be_alone_unless_all_come(os.path.abspath(target.prefix))
        return agreement

    def _held_by_all(self) -> list[str]:
        """Returns the names of what no worker can save alone."""
        objects = self._objects
        values = {**objects.local}
        for name in objects.optimizers:
            values |= {array_key(keys): v for keys, v in local_values(name, objects).items()}
        return [
            name
            for name, value in values.items()
            if value.is_read_together or (isinstance(value, IteratorPlace) and value.is_distributed)
        ]

    def _agreement(self, what: str) -> WorkerAgreement:
        plain = self._objects.plain.values()
        distributed = any(isinstance(v, IteratorPlace) and v.is_distributed for v in plain)
        return WorkerAgreement(self._local_variables(), what, together=distributed)

    def _local_variables(self) -> Iterator[Variable]:
        yield from self._objects.variables.values()
        for optimizer in self._objects.optimizers.values():
            yield from optimizer.variables

    def _variables_here(self) -> Iterator[Variable]:
        for variable in self._local_variables():
            if not isinstance(variable, RemoteVariable):
                yield variable

    def _contents(self) -> Contents:
        # Again: another thread may have begun to train a Keras model, whose steps have its variables.
        self._take(self._given)
        objects = self._objects
        values: dict[Keys, SavedValue] = {
            objects.keys[name]: value for name, value in objects.local.items()
        }
        remote: dict[Keys, RemoteArray] = {
            objects.keys[name]: WholeVariable(variable) for name, variable in objects.remote.items()
        }
        for name in objects.optimizers:
            values.update(local_values(name, objects))
            remote.update(remote_arrays(name, objects))
        optimizers = {name: known_variables(name, objects) for name in objects.optimizers}
        is_behind = any(variable.expects_value for variable in objects.variables.values())
        return Contents(values, remote, {"optimizers": optimizers}, is_behind)


_restoring: set[int] = set()
"""Threads that are changing variables and all else that is restored."""


def _check_not_interrupting() -> None:
    """Refuses to save what is restored by halves: in a signal handler that interrupts ``restore``."""
    if threading.get_ident() in _restoring:
        raise ContextError(
            "A signal handler cannot save or restore a Checkpoint while it interrupts Checkpoint.restore() "
            "of the same thread: some variables have their restored values, others have not. Set a flag "
            "in the handler, and do it in the loop when the flag is set."
        )


def _check_context(what: str) -> None:
    replica = context.get_replica_context() if context.has_strategy() else None
    in_replica = replica is not None and replica.num_replicas_in_sync > 1
    if in_replica or state.current_frame() is not None or under_jit():
        raise ContextError(
            f"Checkpoint.{what}() is called in a replica or a compiled function. Call it outside of "
            "strategy.run(), sg.function and JAX transformations."
        )
