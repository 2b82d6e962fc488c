"""``Store``: everything that one parameter server holds."""

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

_MOST_FUNCTIONS = 256


class Store:
    """The variables of one coordinator, and the functions that it and its workers have sent.

    A coordinator *attaches* before it creates variables. The newest one wins: what belonged to an
    earlier coordinator, which must have died or given up, is dropped. Or it *takes over*: then what
    belonged to the earlier one is its own from then on.

    Attributes:
        incarnation: Another one each time that the server is started: whoever knows it sees whether the
            server still holds what it held.
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
            observer.add_source("parameter_server", self.figures)

    @property
    def num_bytes(self) -> int:
        """Size of all variables together."""
        with self._lock:
            return sum(stored.nbytes for stored in self._arrays.values())

    def figures(self) -> dict[str, int]:
        """Returns how many variables and shards there are, their bytes, and the updates carried out."""
        return {
            "variables": len(self._arrays),
            "bytes": self.num_bytes,
            "updates": self._num_updates,
        }

    def attach(self, owner: str, lineage: str, *, to_restore: bool = False) -> None:
        """Makes ``owner`` the coordinator whose variables this server holds.

        Args:
            owner: The coordinator.
            lineage: What coordinators have in common of which one took over from the other.
            to_restore: Whether the coordinator will say when all servers hold what belongs together.
        """
        with self._lock:
            self._is_restoring = to_restore
            if owner != self._owner:
                self._owner, self._lineage = owner, lineage
                self._arrays.clear()
                self._functions.clear()
                self._records.clear()

    def take_over(self, owner: str, previous: str) -> None:
        """Makes ``owner`` the coordinator of what belonged to another.

        Raises:
            VariableError: If it belongs to somebody else than ``previous`` by now.
        """
        with self._lock:
            if self._owner != previous:
                raise VariableError(
                    "What a parameter server holds cannot be taken over: another coordinator was "
                    "quicker. Run one coordinator at a time."
                )
            self._owner = owner

    def holdings(self) -> dict[str, Any]:
        """Returns whose variables this server holds, and what was noted of them."""
        with self._lock:
            # Nobody else can know how far the coordinator came that was restoring the servers.
            owner = "" if self._is_restoring else self._owner
            records = list(self._records.values())
            return {"owner": owner, "lineage": self._lineage, "records": records}

    def restored(self) -> None:
        """Takes in that all servers hold what belongs together again."""
        with self._lock:
            self._is_restoring = False

    def note(self, variable: str, record: Any) -> None:
        """Keeps what is to be known of a variable that is complete, beside its first shard."""
        with self._lock:
            self._records[variable] = record

    def sign(self) -> dict[str, Any]:
        """Returns which server this is, and how many updates it has carried out."""
        return {"incarnation": self.incarnation, "num_updates": self._num_updates}

    def count_updates(self, number: int) -> None:
        """Notes that so many updates have been carried out."""
        with self._lock:
            self._num_updates += number

    def blank(self) -> list[str]:
        """Returns the names of variables that nobody has given a value."""
        with self._lock:
            return sorted({stored.name for stored in self._arrays.values() if stored.is_blank})

    def create(
        self, owner: str, variable: str, name: str, shape: tuple[int, ...], dtype: str
    ) -> None:
        """Makes a variable or shard, which has to be given a value before it is used.

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
            self._arrays[variable] = StoredArray(name, zeros, is_blank=True)

    def delete(self, variables: list[str]) -> None:
        """Forgets variables; those that are not there are no error."""
        with self._lock:
            for variable in variables:
                self._arrays.pop(variable, None)
                self._records.pop(variable, None)

    def find(self, variable: str, *, to_be_set: bool = False) -> StoredArray:
        """Returns the variable or shard with this id.

        Args:
            variable: The id.
            to_be_set: Whether it is only to be given a value.

        Raises:
            PSUnavailableError: If it is not here (any more), or has no value (again) yet.
        """
        try:
            stored = self._arrays[variable]
        except KeyError:
            raise PSUnavailableError(
                "This parameter server does not hold the variable: the server was restarted, another "
                "coordinator has taken it over, or the coordinator has dropped the variable. Create the "
                "variables again and restore them from a checkpoint."
            ) from None
        if stored.is_blank and not to_be_set:
            raise PSUnavailableError(
                f"Variable {stored.name!r} was lost with its parameter server, and has not been restored "
                "yet."
            )
        return stored

    def add_function(self, digest: str, pickled: bytes) -> None:
        """Keeps a function that updates will refer to, until many others have come."""
        function = pickle.loads(pickled)
        with self._lock:
            # One object, so that what it has compiled is compiled once.
            self._functions.setdefault(digest, function)
            while len(self._functions) > _MOST_FUNCTIONS:
                self._functions.popitem(last=False)

    def functions(self, digests: Iterable[str]) -> dict[str, ServerFunction | None]:
        """Returns the functions with these digests; ``None`` for one that has to be sent first."""
        with self._lock:
            found = {digest: self._functions.get(digest) for digest in digests}
            for digest, function in found.items():
                if function is not None:
                    self._functions.move_to_end(digest)
            return found
