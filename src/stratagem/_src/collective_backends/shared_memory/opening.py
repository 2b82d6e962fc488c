"""From processes that know each other to processes that share memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

from stratagem._src.collective_backends.shared_memory.area import OwnArea, PeerArea
from stratagem._src.process.host_identity import boot_id

__all__ = ["machine_key", "offer_of", "open_areas"]


def machine_key() -> tuple[str, str]:
    """Returns what is equal in processes of one machine that can see each other."""
    return boot_id(), os.readlink("/proc/self/ns/pid")


def offer_of(own: OwnArea) -> list[Any]:
    """Returns what other processes of the machine need to know of an area, plain data."""
    return [own.place, own.key.hex()]


def open_areas(
    own: OwnArea, number: int, offers: Sequence[list[Any]], opened: contextlib.ExitStack
) -> list[OwnArea | PeerArea] | None:
    """Returns the memory of the processes of this machine; ``None`` if that of one cannot be had.

    Args:
        own: The memory of this process.
        number: Which of the offers is its own.
        offers: Of all these processes.
        opened: Closes what is opened.
    """
    areas: list[OwnArea | PeerArea] = []
    for i, (place, key) in enumerate(offers):
        try:
            area = own if i == number else opened.enter_context(PeerArea(*place))
        except (OSError, ValueError):
            return None
        if area.key.hex() != key:
            return None
        areas.append(area)
    return areas
