"""``open_exchange``: from processes that know each other to processes that share memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from stratagem._src.core.boot_id import boot_id
from stratagem._src.shared_memory.area import OwnArea, PeerArea, can_share
from stratagem._src.shared_memory.shared_exchange import SharedExchange

__all__ = ["open_exchange"]


def open_exchange(rank: int, tell: Callable[[Any], list[Any]]) -> SharedExchange | None:
    """Returns what processes exchange arrays through, if all of them can share memory.

    All of them call it, and all get something or nobody does.

    Args:
        rank: The number of this process.
        tell: Returns what every process tells, plain data, in the order of their ranks.
    """
    with contextlib.ExitStack() as opened:
        own = opened.enter_context(OwnArea()) if can_share() else None
        offers = tell(None if own is None else [_machine(), own.place, own.key.hex()])
        areas = None if own is None else _open(rank, own, offers, opened)
        if not all(tell(areas is not None)):
            return None
        opened.pop_all()
    assert areas is not None
    return SharedExchange(rank, areas)


def _open(
    rank: int, own: OwnArea, offers: list[Any], opened: contextlib.ExitStack
) -> list[OwnArea | PeerArea] | None:
    """Returns the memory of every process; ``None`` if that of one cannot be had."""
    if any(offer is None or offer[0] != _machine() for offer in offers):
        return None
    areas: list[OwnArea | PeerArea] = []
    for number, (_, place, key) in enumerate(offers):
        try:
            area = own if number == rank else opened.enter_context(PeerArea(*place))
        except (OSError, ValueError):
            return None
        if area.key.hex() != key:
            return None
        areas.append(area)
    return areas


def _machine() -> list[str]:
    """Tells machines apart, and on one of them those that cannot see each other's processes."""
    return [boot_id(), os.readlink("/proc/self/ns/pid")]
