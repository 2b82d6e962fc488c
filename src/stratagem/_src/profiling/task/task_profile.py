"""``TaskProfile``: what was recorded of one task, as it travels and as it lies in files."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.profiling.task.clock import ClockDifference
from stratagem._src.profiling.task.shifted_record import shifted
from stratagem._src.transport import Message

__all__ = ["TaskProfile", "profiles_in"]

_RECORD, _FACTS = ".xplane.pb", ".task.json"


@dataclass(frozen=True)
class TaskProfile:
    """What JAX's profiler recorded of a task, and what is needed to put it beside others.

    Attributes:
        task: Which task, such as ``"worker 0"``.
        record: An ``XSpace``, serialized.
        machine: Whose clock it has; see ``clock.machine``.
        replicas: The replica of each device, by JAX's number of the device.
        clock: By how much its clock is ahead.
        origin_ns: From when the record's times count, in nanoseconds since 1970 by the leading process's
            clock; ``None`` for when it began, by its own.
    """

    task: str
    record: bytes
    machine: str
    replicas: Mapping[int, int] = field(default_factory=dict)
    clock: ClockDifference = field(default_factory=ClockDifference)
    origin_ns: int | None = None

    @functools.cached_property
    def began_ns(self) -> int:
        """When the recording began, in nanoseconds since 1970 by the leading process's clock."""
        for plane in jax.profiler.ProfileData.from_serialized_xspace(self.record).planes:
            for name, value in plane.stats:
                if name == "profile_start_time":
                    return int(value) - self.clock.ahead_ns
        raise InvalidArgumentError(
            f"A record of JAX's profiler must say when it began, but that of {self.task} does not."
        )

    @property
    def counts_from_ns(self) -> int:
        """From when the record's times count, in nanoseconds since 1970 by the leading process's clock."""
        return self.began_ns if self.origin_ns is None else self.origin_ns

    def from_origin(self, origin_ns: int) -> TaskProfile:
        """Returns it with times that count from a moment, at or before its own beginning."""
        record = shifted(self.record, self.began_ns - origin_ns)
        return dataclasses.replace(self, record=record, origin_ns=origin_ns)

    def to_message(self) -> Message:
        """Returns it as a message."""
        return Message(json.dumps(self._facts()).encode(), (np.frombuffer(self.record, np.uint8),))

    @classmethod
    def from_message(cls, message: Message) -> TaskProfile:
        """Returns what ``to_message`` wrote."""
        (record,) = message.arrays
        return cls._from_facts(json.loads(message.body), record.tobytes())

    def write(self, folder: Path) -> None:
        """Writes it where TensorBoard looks, and its facts beside."""
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(
            r"[^\w.-]", "_", self.task
        )  # it comes from the task, and must be in the folder
        (folder / f"{name}{_FACTS}").write_text(json.dumps(self._facts()))
        (folder / f"{name}{_RECORD}").write_bytes(self.record)

    @classmethod
    def read(cls, path: Path) -> TaskProfile:
        """Reads what ``write`` wrote, given the file of the record."""
        facts = path.with_name(f"{path.name.removesuffix(_RECORD)}{_FACTS}")
        return cls._from_facts(json.loads(facts.read_text()), path.read_bytes())

    def _facts(self) -> dict[str, Any]:
        facts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del facts["record"]
        return facts | {"clock": dataclasses.asdict(self.clock)}

    @classmethod
    def _from_facts(cls, facts: Mapping[str, Any], record: bytes) -> TaskProfile:
        replicas = {int(device): replica for device, replica in facts["replicas"].items()}
        clock = ClockDifference(**facts["clock"])
        return cls(**{**facts, "record": record, "replicas": replicas, "clock": clock})


def profiles_in(folder: Path) -> list[TaskProfile]:
    """Returns what lies in a folder, by task.

    Raises:
        InvalidArgumentError: If nothing does, or not what was written there.
    """
    try:
        profiles = [TaskProfile.read(path) for path in folder.glob(f"*{_RECORD}")]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"The profiles of a job must be as sg.profiler wrote them, but those in {folder} cannot be "
            f"read ({type(error).__name__}: {error})."
        ) from None
    if not profiles:
        raise InvalidArgumentError(
            f"A folder with profiles must have files *{_RECORD}, got {folder}. It is a folder below "
            "plugins/profile in the directory that sg.profiler was given."
        )
    return sorted(profiles, key=lambda p: (p.task.split(" ")[0], len(p.task), p.task))
