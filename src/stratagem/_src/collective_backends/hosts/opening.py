"""``open_exchange``: from processes that know each other to processes that exchange arrays."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from stratagem._src.cluster.errors import EnvironmentVariableError
from stratagem._src.collective_backends.hosts.host_layout import HostLayout
from stratagem._src.collective_backends.hosts.host_link import HostLink
from stratagem._src.collective_backends.hosts.hosts_exchange import HostsExchange
from stratagem._src.collective_backends.hosts.lane_connections import LaneDoor, UnreachableError
from stratagem._src.collective_backends.shared_memory.area import OwnArea, can_share
from stratagem._src.collective_backends.shared_memory.opening import (
    machine_key,
    offer_of,
    open_areas,
)
from stratagem._src.collective_backends.shared_memory.shared_exchange import (
    ArrayExchange,
    SharedExchange,
)
from stratagem._src.core.errors import StratagemError, UnavailableError
from stratagem._src.transport import Credentials

__all__ = ["arrays_are_encrypted", "open_exchange"]

_ENCRYPT_VARIABLE = "STRATAGEM_ENCRYPT_ARRAYS"
_log = logging.getLogger("stratagem")
_MAX_SHOWN = 4
DEFAULT_CONNECT_SECONDS = 30.0


def arrays_are_encrypted() -> bool:
    """Returns whether the environment asks for arrays to be encrypted between hosts.

    Raises:
        EnvironmentVariableError: If ``STRATAGEM_ENCRYPT_ARRAYS`` is neither 0 nor 1.
    """
    text = os.environ.get(_ENCRYPT_VARIABLE, "0").strip()
    if text not in ("0", "1"):
        raise EnvironmentVariableError(_ENCRYPT_VARIABLE, text, "0 or 1")
    return text == "1"


def open_exchange(
    rank: int,
    names: Sequence[str],
    listen_host: str | None,
    credentials: Credentials,
    tell: Callable[[Any], list[Any]],
    *,
    is_encrypted: bool = False,
    timeout: float = DEFAULT_CONNECT_SECONDS,
) -> ArrayExchange | None:
    """Returns what processes exchange arrays through; ``None`` if XLA has to do it.

    All of them call it, and either all get an exchange or none does. Those of one host share
    memory, and those of several hosts connect to each other.

    Args:
        rank: The number of this process.
        names: What errors call the processes.
        listen_host: The address of this host in the cluster; ``None`` if it is not known.
        credentials: What the processes prove to each other.
        tell: Returns what every process tells, plain data, in the order of their ranks.
        is_encrypted: Whether arrays must be encrypted between hosts; they are if one process says so.
        timeout: Seconds until processes that listen must be connected; 30 are the most.

    Raises:
        UnavailableError: If two processes cannot reach each other, so that XLA could not connect them
            either; or arrays must be encrypted, but some processes cannot connect.
    """
    with contextlib.ExitStack() as opened:
        own, problem = _own_area(opened)
        offers = tell(problem if own is None else [*machine_key(), offer_of(own)])
        refused = [offer for offer in offers if isinstance(offer, str)]
        if refused and rank == 0:
            _log.warning("Arrays travel between workers through XLA. %s", refused[0])
        if own is None or refused or None in offers:
            return None
        layout = HostLayout.of([tuple(offer[:2]) for offer in offers])
        local_offers = [offers[other][2] for other in layout.hosts[layout.host_of(rank)]]
        areas = open_areas(own, layout.local_rank(rank), local_offers, opened)
        if not all(tell(areas is not None)):
            return None
        assert areas is not None
        if len(layout.hosts) == 1:
            opened.pop_all()
            return SharedExchange(rank, areas)
        link = _open_link(
            rank, layout, names, listen_host, credentials, tell, is_encrypted, timeout
        )
        if isinstance(link, _NoLink):
            return None
        opened.pop_all()
    return HostsExchange(rank, layout, areas, link)


def _own_area(opened: contextlib.ExitStack) -> tuple[OwnArea | None, str | None]:
    """Returns memory to share; or nothing, and why the system refuses it where it has such memory."""
    if not can_share():
        return None, None
    try:
        return opened.enter_context(OwnArea()), None
    except OSError as error:
        return None, f"The system refuses memory that processes share: {error}."


class _NoLink:
    """Some processes cannot connect, so none uses connections."""


def _open_link(
    rank: int,
    layout: HostLayout,
    names: Sequence[str],
    listen_host: str | None,
    credentials: Credentials,
    tell: Callable[[Any], list[Any]],
    is_encrypted: bool,
    timeout: float,
) -> HostLink | _NoLink | None:
    """Returns the link of this process; ``None`` if it is in no lane."""
    peers = layout.lane_peers(rank)
    with contextlib.ExitStack() as opened:
        address, problem, is_cut = "", None, False
        if peers and listen_host is None:
            problem = f"The address of {names[rank]} is not known."
        elif peers and listen_host is not None:
            door = opened.enter_context(LaneDoor(rank, listen_host, credentials))
            try:
                address = door.open()
            except StratagemError as error:
                problem = str(error)
        told = tell([address, is_encrypted])
        is_encrypted = any(encrypts for _, encrypts in told)
        connections = {}
        if peers and problem is None and all(told[peer][0] for peer in peers.values()):
            try:
                addresses = {other: told[other][0] for other in peers.values()}
                connections = door.connect(
                    addresses, names, is_encrypted=is_encrypted, timeout=timeout
                )
            except UnreachableError as error:
                problem, is_cut = str(error), True
            except StratagemError as error:
                problem = str(error)
        answers = tell(None if problem is None else [problem, is_cut])
        found = [text for text, _ in filter(None, answers)]
        # XLA would connect the same two hosts, at other ports that the system chooses, and wait in vain.
        cut = [text for text, is_cut in filter(None, answers) if is_cut]
        if cut and len(cut) == len(found):
            raise UnavailableError(
                "Workers on different hosts must be able to connect to each other, but "
                f"{'; '.join(cut[:_MAX_SHOWN])}. Let the firewall between these hosts pass TCP "
                "connections in both directions, to the ports that systems choose "
                "(net.ipv4.ip_local_port_range)."
            )
        if found:
            if is_encrypted:
                raise UnavailableError(
                    f"Arrays must be encrypted between hosts, but workers cannot connect: {found[0]}"
                )
            if rank == 0:
                _log.warning("Arrays travel between hosts through XLA. %s", found[0])
            return _NoLink()
        if not peers:
            return None
        opened.pop_all()
    by_host = {host: connections[peer] for host, peer in peers.items()}
    peer_names = {host: names[peer] for host, peer in peers.items()}
    return HostLink(layout.host_of(rank), by_host, peer_names, when_closed=door.close)
