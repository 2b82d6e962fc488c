"""``TaskProfile``: the profile of one task, as a message and as files."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.jax_compat.profiler_session import planes_of
from stratagem._src.profiling.task.clock import ClockOffset
from stratagem._src.profiling.task.shifted_record import shifted
from stratagem._src.transport import Message

__all__ = ["TaskProfile", "profiles_in"]

_RECORD, _FACTS = ".xplane.pb", ".task.json"


@dataclass(frozen=True)
class TaskProfile:
    """The record of JAX's profiler for a task, with the metadata to align it with other tasks.

    Attributes:
        task: The name of the task, such as ``"worker 0"``.
        record: A serialized ``XSpace``.
        machine: The machine whose clock the record uses; see ``boot_id``.
        replicas: The replica of each device, by JAX's device id.
        clock: The offset of its clock.
        origin_ns: The origin of the record's times, as Unix time in nanoseconds of the leader's clock;
            ``None`` for its own start on its own clock.
    """

    task: str
    record: bytes
    machine: str
    replicas: Mapping[int, int] = field(default_factory=dict)
    clock: ClockOffset = field(default_factory=ClockOffset)
    origin_ns: int | None = None

    @functools.cached_property
    def began_ns(self) -> int:
        """The start of the recording, as Unix time in nanoseconds of the leader's clock."""
        for plane in planes_of(self.record):
            for name, value in plane.stats:
                if name == "profile_start_time":
                    return int(value) - self.clock.ahead_ns
        raise InvalidArgumentError(
            f"A record of JAX's profiler must have a start time, but that of {self.task} has none."
        )

    @property
    def counts_from_ns(self) -> int:
        """The origin of the record's times, as Unix time in nanoseconds of the leader's clock."""
        return self.began_ns if self.origin_ns is None else self.origin_ns

    def from_origin(self, origin_ns: int) -> TaskProfile:
        """Returns the profile with another origin, at or before its own start."""
        record = shifted(self.record, self.began_ns - origin_ns)
        return dataclasses.replace(self, record=record, origin_ns=origin_ns)

    def to_message(self) -> Message:
        """Returns the profile as a message."""
        return Message(json.dumps(self._facts()).encode(), (np.frombuffer(self.record, np.uint8),))

    @classmethod
    def from_message(cls, message: Message) -> TaskProfile:
        """Returns the profile in a message of ``to_message``."""
        (record,) = message.arrays
        return cls._from_facts(json.loads(message.body), record.tobytes())

    def write(self, folder: Path) -> None:
        """Writes the record where TensorBoard finds it, and its metadata next to it."""
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(
            r"[^\w.-]", "_", self.task
        )  # it comes from the task, and must be in the folder
        (folder / f"{name}{_FACTS}").write_text(json.dumps(self._facts()))
        (folder / f"{name}{_RECORD}").write_bytes(self.record)

    @classmethod
    def read(cls, path: Path) -> TaskProfile:
        """Reads a profile that ``write`` wrote, given the file of the record."""
        facts = path.with_name(f"{path.name.removesuffix(_RECORD)}{_FACTS}")
        return cls._from_facts(json.loads(facts.read_text()), path.read_bytes())

    def _facts(self) -> dict[str, Any]:
        facts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del facts["record"]
        return facts | {"clock": dataclasses.asdict(self.clock)}

    @classmethod
    def _from_facts(cls, facts: Mapping[str, Any], record: bytes) -> TaskProfile:
        replicas = {int(device): replica for device, replica in facts["replicas"].items()}
        clock = ClockOffset(**facts["clock"])
        return cls(**{**facts, "record": record, "replicas": replicas, "clock": clock})


def profiles_in(folder: Path) -> list[TaskProfile]:
    """Returns the profiles in a directory, by task.

    Raises:
        InvalidArgumentError: If there are none, or they cannot be read.
    """
    try:
        profiles = [TaskProfile.read(path) for path in folder.glob(f"*{_RECORD}")]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"The profiles of a job must be files of sg.profiler, but those in {folder} cannot be "
            f"read ({type(error).__name__}: {error})."
        ) from None
    if not profiles:
        raise InvalidArgumentError(
            f"A directory of profiles must have files *{_RECORD}, got {folder}. Use a directory below "
            "plugins/profile in the log directory of sg.profiler."
        )
    return sorted(profiles, key=lambda p: (p.task.split(" ")[0], len(p.task), p.task))
