"""``Store``: the variables and functions of one parameter server."""

from __future__ import annotations

import collections
import pickle
import threading
import uuid
from collections.abc import Iterable
from typing import Any

import numpy as np

from stratagem._src.core.errors import PSUnavailableError, VariableError
from stratagem._src.parameter_server.server.server_function import ServerFunction
from stratagem._src.parameter_server.server.stored_array import StoredArray, aligned_zeros
from stratagem._src.telemetry.measurement.recorder import recorder

__all__ = ["Store"]

_MAX_FUNCTIONS = 256


class Store:
    """The variables of one coordinator, and the functions that it and its workers have sent.

    A coordinator *attaches* before it creates variables. The newest one wins: the variables of an earlier
    coordinator, which must have died or given up, are dropped. Or it *takes over*: it becomes the owner
    of the earlier coordinator's variables.

    Attributes:
        incarnation: A new id on each start of the server. A client compares it to see whether the server
            was restarted, and so lost its variables.
    """

    def __init__(self) -> None:
        self.incarnation: str = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._owner = ""
        self._lineage = ""
        self._num_updates = 0
        self._is_restoring = False
        self._records: dict[str, Any] = {}
        self._arrays: dict[str, StoredArray] = {}
        self._functions: collections.OrderedDict[str, ServerFunction] = collections.OrderedDict()
        observer = recorder()
        if observer is not None:
            observer.add_source("parameter_server", self.metrics)

    @property
    def num_bytes(self) -> int:
        """Total size of all variables."""
        with self._lock:
            return sum(stored.nbytes for stored in self._arrays.values())

    def metrics(self) -> dict[str, int]:
        """Returns the number of variables and shards, their bytes, and the number of applied updates."""
        return {
            "variables": len(self._arrays),
            "bytes": self.num_bytes,
            "updates": self._num_updates,
        }

    def attach(self, owner: str, lineage: str, *, to_restore: bool = False) -> None:
        """Makes ``owner`` the coordinator whose variables this server holds.

        Args:
            owner: The coordinator's id.
            lineage: The lineage id, which coordinators that take over from each other share.
            to_restore: Whether the coordinator restores variables, and calls ``mark_restored`` at the end.
        """
        with self._lock:
            self._is_restoring = to_restore
            if owner != self._owner:
                self._owner, self._lineage = owner, lineage
                self._arrays.clear()
                self._functions.clear()
                self._records.clear()

    def take_over(self, owner: str, previous: str) -> None:
        """Makes ``owner`` the coordinator of another coordinator's variables.

        Raises:
            VariableError: If their owner is not ``previous`` any more.
        """
        with self._lock:
            if self._owner != previous:
                raise VariableError(
                    "The variables of a parameter server cannot be taken over: another coordinator was "
                    "faster. Run one coordinator at a time."
                )
            self._owner = owner

    def variable_records(self) -> dict[str, Any]:
        """Returns the owner of this server's variables, and their records."""
        with self._lock:
            # A half-finished restore has no owner: another coordinator cannot tell how far it got, so it
            # must not take over these variables.
            owner = "" if self._is_restoring else self._owner
            records = list(self._records.values())
            return {"owner": owner, "lineage": self._lineage, "records": records}

    def mark_restored(self) -> None:
        """Ends a restore: all servers hold consistent variables again."""
        with self._lock:
            self._is_restoring = False

    def add_record(self, variable: str, record: Any) -> None:
        """Stores the record of an initialized variable whose first shard is here."""
        with self._lock:
            self._records[variable] = record

    def status(self) -> dict[str, Any]:
        """Returns the incarnation of this server, and the number of updates it has applied."""
        return {"incarnation": self.incarnation, "num_updates": self._num_updates}

    def count_updates(self, number: int) -> None:
        """Adds to the number of applied updates."""
        with self._lock:
            self._num_updates += number

    def uninitialized(self) -> list[str]:
        """Returns the names of variables without a value."""
        with self._lock:
            return sorted(
                {stored.name for stored in self._arrays.values() if stored.is_uninitialized}
            )

    def create(
        self, owner: str, variable: str, name: str, shape: tuple[int, ...], dtype: str
    ) -> None:
        """Creates a variable or shard, which must be given a value before it is used.

        Raises:
            VariableError: If ``owner`` is not the coordinator that attached last.
        """
        with self._lock:
            if owner != self._owner:
                raise VariableError(
                    f"Variable {name!r} cannot be created on this parameter server: variables are "
                    "created by the coordinator, and another process has taken that role. Create it "
                    "in the coordinator's strategy.scope()."
                )
            zeros = aligned_zeros(shape, np.dtype(dtype))
            self._arrays[variable] = StoredArray(
                name, zeros, is_uninitialized=True, id=variable, find=self.find
            )

    def delete(self, variables: list[str]) -> None:
        """Deletes variables; ignores unknown ids."""
        with self._lock:
            for variable in variables:
                self._arrays.pop(variable, None)
                self._records.pop(variable, None)

    def find(self, variable: str, *, allow_uninitialized: bool = False) -> StoredArray:
        """Returns the variable or shard with this id.

        Args:
            variable: The id.
            allow_uninitialized: Whether it may lack a value, because the caller sets one.

        Raises:
            PSUnavailableError: If this server does not hold it, or it has no value yet.
        """
        try:
            stored = self._arrays[variable]
        except KeyError:
            raise PSUnavailableError(
                "This parameter server does not hold the variable: the server was restarted, another "
                "coordinator has taken it over, or the coordinator has dropped the variable. Create the "
                "variables again and restore them from a checkpoint."
            ) from None
        if stored.is_uninitialized and not allow_uninitialized:
            raise PSUnavailableError(
                f"Variable {stored.name!r} was lost with its parameter server and is not restored yet."
            )
        return stored

    def add_function(self, digest: str, pickled: bytes) -> None:
        """Caches a function that updates refer to by digest (LRU, ``_MAX_FUNCTIONS`` entries)."""
        function = pickle.loads(pickled)
        with self._lock:
            # Keep the first object: the programs that it compiled stay cached with it.
            self._functions.setdefault(digest, function)
            while len(self._functions) > _MAX_FUNCTIONS:
                self._functions.popitem(last=False)

    def functions(self, digests: Iterable[str]) -> dict[str, ServerFunction | None]:
        """Returns the functions with these digests; ``None`` for one that must be sent first."""
        with self._lock:
            found = {digest: self._functions.get(digest) for digest in digests}
            for digest, function in found.items():
                if function is not None:
                    self._functions.move_to_end(digest)
            return found
